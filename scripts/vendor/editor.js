/**
 * The code editor as one module: CodeMirror 6 with Python, following the page's own colours.
 * Built by scripts/vendor/build; the product needs no Node.js at run time.
 */
import { basicSetup } from "codemirror";
import { python } from "@codemirror/lang-python";
import { HighlightStyle, indentUnit, syntaxHighlighting } from "@codemirror/language";
import { EditorState } from "@codemirror/state";
import { EditorView, keymap } from "@codemirror/view";
import { indentWithTab } from "@codemirror/commands";
import { tags } from "@lezer/highlight";

const colours = HighlightStyle.define([
  { tag: [tags.keyword, tags.operatorKeyword, tags.modifier], color: "var(--code-keyword)" },
  { tag: [tags.string, tags.special(tags.string)], color: "var(--code-string)" },
  { tag: [tags.number, tags.bool, tags.null], color: "var(--code-number)" },
  { tag: [tags.comment, tags.docComment], color: "var(--code-comment)", fontStyle: "italic" },
  { tag: [tags.function(tags.variableName), tags.function(tags.propertyName)], color: "var(--code-function)" },
  { tag: [tags.className, tags.typeName], color: "var(--code-type)" },
  { tag: [tags.definition(tags.variableName), tags.propertyName], color: "var(--code-name)" },
  { tag: [tags.meta], color: "var(--code-comment)" },
]);

const look = EditorView.theme({
  "&": { color: "var(--text)", backgroundColor: "var(--code-bg)", fontSize: "0.875rem" },
  ".cm-content": { caretColor: "var(--text)", fontFamily: "var(--font-mono)" },
  ".cm-cursor, .cm-dropCursor": { borderLeftColor: "var(--text)" },
  "&.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground, .cm-selectionBackground":
    { backgroundColor: "var(--code-selection)" },
  ".cm-gutters": { backgroundColor: "var(--code-bg)", color: "var(--text-muted)", border: "none" },
  ".cm-activeLine, .cm-activeLineGutter": { backgroundColor: "var(--code-active)" },
  ".cm-panels": { backgroundColor: "var(--surface)", color: "var(--text)" },
  ".cm-tooltip": { backgroundColor: "var(--surface)", color: "var(--text)", border: "1px solid var(--border)" },
});

/**
 * @param {{parent: Element, doc?: string, nonce?: string, label: string,
 *          readOnly?: boolean, onChange?: (text: string) => void}} options
 */
export function createEditor({ parent, doc = "", nonce = "", label, readOnly = false, onChange }) {
  const view = new EditorView({
    parent,
    state: EditorState.create({
      doc,
      extensions: [
        ...(nonce ? [EditorView.cspNonce.of(nonce)] : []),
        basicSetup,
        keymap.of([indentWithTab]),
        indentUnit.of("    "),
        python(),
        syntaxHighlighting(colours),
        look,
        EditorState.readOnly.of(readOnly),
        EditorView.contentAttributes.of({ "aria-label": label }),
        EditorView.updateListener.of((update) => {
          if (update.docChanged && onChange) onChange(update.state.doc.toString());
        }),
      ],
    }),
  });
  return {
    view,
    text: () => view.state.doc.toString(),
    setText: (/** @type {string} */ text) =>
      view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: text } }),
    focus: () => view.focus(),
  };
}
