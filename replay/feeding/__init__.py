"""How buffers are filled while a run trains."""
