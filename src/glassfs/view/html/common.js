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
const lead = (id, address, text = at(id).textContent) => {
  Object.assign(at(id), { href: address, textContent: text, hidden: false });
};
// Number of folders between this page and the one of everything that is mounted, in the mount's own directory; else 0.
const depthInMount = () => {
  const folders = location.pathname.split("/"), place = folders.lastIndexOf(".glassfs");
  return place < 0 ? 0 : folders.length - place - 3;
};
const note = (text) => {
  made("li", at("notes").firstElementChild, "", text).dir = "auto";
  at("notes").hidden = false;
};
