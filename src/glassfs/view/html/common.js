"use strict";
// Functions that all pages share.
const at = (id) => document.getElementById(id);
const made = (tag, parent, name, text) => {
  const element = document.createElement(tag);
  if (name) element.className = name;
  if (text !== undefined) element.textContent = text;
  if (parent) parent.append(element);
  return element;
};
const note = (text) => {
  made("li", at("notes").firstElementChild, "", text).dir = "auto";
  at("notes").hidden = false;
};
