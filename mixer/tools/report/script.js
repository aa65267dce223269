"use strict";

const PRINTED = { text: "#1c1f24", ground: "#ffffff" };
const PAPER_WIDTH_PIXELS = 680; // a sheet of A4 without its margins, in CSS pixels

async function unpackPlotly() {
  const packed = Uint8Array.from(atob(document.getElementById("plotly").textContent), (letter) => letter.charCodeAt(0));
  const unpacked = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(unpacked).text();
  document.head.append(script);
}

function screenColours() {
  const style = getComputedStyle(document.documentElement);
  return { text: style.getPropertyValue("--text").trim(), ground: style.getPropertyValue("--ground").trim() };
}

function layoutOf(colours) {
  return { "font.color": colours.text, "hoverlabel.bgcolor": colours.ground, "hoverlabel.font.color": colours.text };
}

const panels = [...document.querySelectorAll("[data-figure]")];

function relayoutAll(changes) {
  for (const panel of panels) Plotly.relayout(panel, changes);
}

function fitToPaper() {
  relayoutAll(layoutOf(PRINTED));
  for (const panel of panels) {
    const isAlone = panel.closest(".panels").childElementCount === 1;
    Plotly.relayout(panel, { width: isAlone ? PAPER_WIDTH_PIXELS : PAPER_WIDTH_PIXELS / 2 - 12 });
  }
}

function listenToKeys() {
  for (const button of document.querySelectorAll(".key button")) {
    button.addEventListener("click", () => {
      const visible = button.getAttribute("aria-pressed") === "false";
      button.setAttribute("aria-pressed", String(visible));
      for (const panel of button.closest("section").querySelectorAll("[data-figure]")) {
        const lines = [...panel.data.keys()].filter((index) => panel.data[index].legendgroup === button.dataset.key);
        if (lines.length) Plotly.restyle(panel, { visible }, lines);
      }
    });
  }
}

async function draw() {
  await unpackPlotly();
  document.getElementById("notice").hidden = true;
  const figures = JSON.parse(document.getElementById("figures").textContent);
  // Where a finger scrolls the page it must not zoom a plot, and there the tools would always cover it.
  const hasPointer = matchMedia("(hover: hover) and (pointer: fine)").matches;
  const dragmode = hasPointer ? "zoom" : false;
  const displayModeBar = hasPointer ? "hover" : false;
  const modeBarButtonsToRemove = ["select2d", "lasso2d"];
  const settings = { responsive: true, displaylogo: false, displayModeBar, modeBarButtonsToRemove };
  for (const panel of panels) {
    const { data, layout } = figures[panel.dataset.figure];
    await Plotly.newPlot(panel, data, { ...layout, dragmode }, settings);
  }
  relayoutAll(layoutOf(screenColours()));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => relayoutAll(layoutOf(screenColours())));
  addEventListener("beforeprint", fitToPaper);
  addEventListener("afterprint", () => relayoutAll({ ...layoutOf(screenColours()), width: null, autosize: true }));
  listenToKeys();
  document.documentElement.dataset.drawn = panels.length; // for who waits until all is there
}

draw();
