// Returns the texts that have too little contrast. WCAG 2.2 (AA) requires a ratio of 4.5, or of 3 for large text.
() => {
  const channels = (color) => {
    const [red, green, blue, alpha = 1] = color.match(/[\d.]+/g).map(Number);
    return { rgb: [red, green, blue], alpha };
  };
  const luminance = (rgb) => {
    const [red, green, blue] = rgb.map((channel) => {
      const part = channel / 255;
      return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const behind = (element) => {
    for (let ancestor = element; ancestor; ancestor = ancestor.parentElement) {
      const color = channels(getComputedStyle(ancestor).backgroundColor);
      if (color.alpha === 1) return color.rgb;
      if (color.alpha !== 0) throw new Error(`half transparent: ${ancestor.className}`);
    }
    throw new Error("nothing behind the text");
  };
  const low = [];
  let seen = 0;
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || element.closest("svg")) continue;
    const style = getComputedStyle(element);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    const [one, other] = [luminance(channels(style.color).rgb), luminance(behind(element))];
    const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    seen += 1;
    if (ratio < (large ? 3 : 4.5)) low.push(`${ratio.toFixed(2)} ${texts.currentNode.data.trim().slice(0, 40)}`);
  }
  return { seen, low };
}
