#!/bin/bash
# Megatron-LM: the arguments of examples/llama/train_llama3_8b_h100_fp8.sh in NVIDIA/Megatron-LM, and a blend.
CHECKPOINT_PATH=${1:-"OUT"}
SEQ_LENGTH=16  # tokens
BLEND=(
    0.7 DATA/web_text_document
    0.3 DATA/code_text_document
)
MODEL_ARGS=(
    --use-mcore-models
    --num-layers 2
    --hidden-size 32
    --seq-length $SEQ_LENGTH
    --rotary-base 10000
    --disable-bias-linear
)
TRAINING_ARGS=(
    --micro-batch-size 2
    --global-batch-size 8
    --train-samples 640
    --lr-warmup-fraction 0.1
    --lr 0.00015
    --min-lr 0.00001
    --lr-decay-style cosine
    --clip-grad 1.0
    --weight-decay 0.1
    --adam-beta1 0.9
    --adam-beta2 0.95
)
PARALLEL_ARGS=(--tensor-model-parallel-size 1 --sequence-parallel "--distributed-timeout-minutes 60")
TRAINING_ARGS+=(--overlap-grad-reduce)

torchrun --nproc_per_node 8 pretrain_gpt.py \
    ${MODEL_ARGS[@]} \
    ${TRAINING_ARGS[@]} ${PARALLEL_ARGS[@]} \
    --data-path "${BLEND[@]}" --split '99,1,0' \
    --tokenizer-type HuggingFaceTokenizer --tokenizer-model BASE \
    --save "$CHECKPOINT_PATH" --load "$CHECKPOINT_PATH" --save-interval 100 --eval-iters 32 2>&1 | tee log.txt
