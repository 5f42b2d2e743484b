// Returns the elements that reach beyond the window, except those inside a box that scrolls.
() => {
  const boxed = (element) => element.closest(".scroll, pre, caption") && !element.matches(".scroll, pre");
  const outside = [...document.body.querySelectorAll("*")].filter((element) => {
    const place = element.getBoundingClientRect();
    return !boxed(element) && (place.right > innerWidth + 0.5 || place.left < -0.5);
  });
  return outside.map((element) => `${element.tagName} ${element.className} ${element.textContent.slice(0, 40)}`);
}
