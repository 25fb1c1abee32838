/* The dialog with the settings of a chat. */

import { temperatureDigits, invalidFieldWords } from "../core/messages";
import { MAX_INSTRUCTIONS, MAX_TEMPERATURE, readInput, DEFAULT_SETTINGS, type Settings, type InvalidField } from "../core/settings";
import { texts } from "../core/words";
import { h, setText } from "./dom";
import { ModelChoice } from "./modelChoice";

/** The position of the slider while the temperature is the model's default. */
const MIDDLE = "1";

export class ChatSettings {
  readonly element: HTMLDialogElement;
  private readonly title = h("h2", { id: "settings-title", tabindex: "-1" }, texts().chatSettings);
  private readonly models = new ModelChoice("setting-model");
  private readonly instructions = h("textarea", { id: "setting-instructions", rows: "4", maxlength: String(MAX_INSTRUCTIONS), dir: "auto" });
  private readonly temperature = h("input", { id: "setting-temperature", type: "range", min: "0", max: String(MAX_TEMPERATURE), step: "0.05", oninput: () => this.onSlide() });
  private readonly temperatureOutput = h("output", { for: "setting-temperature" });
  private readonly defaultTemperature = h("input", { type: "checkbox", id: "setting-usual-temperature", onchange: () => this.drawTemperature() });
  private readonly length = h("input", { id: "setting-length", type: "text", inputmode: "numeric", autocomplete: "off", placeholder: texts().byDefault });
  private readonly errors: Readonly<Record<InvalidField, HTMLElement>> = { instructions: errorLine("instructions"), temperature: errorLine("temperature"), length: errorLine("length") };
  private longest: (model: string | null) => number | null = () => null;

  constructor(private readonly save: (settings: Settings) => void) {
    const close = (): void => this.element.close();
    const form = h(
      "form",
      { novalidate: true, onsubmit: (event) => this.onSubmit(event) },
      this.title,
      h("p", { class: "why" }, texts().settingsScope),
      this.models.field(h("label", { for: "setting-model" }, texts().model)),
      this.field("instructions", texts().instructions, texts().instructionsHint, this.instructions),
      h(
        "div",
        { class: "setting" },
        h("div", { class: "setting-head" }, h("label", { for: "setting-temperature" }, texts().temperature), this.temperatureOutput, h("label", { class: "check" }, this.defaultTemperature, texts().byDefault)),
        this.temperature,
        h("p", { class: "hint", id: "hint-temperature" }, texts().temperatureHint),
        this.errors.temperature,
      ),
      this.field("length", texts().longestAnswer, texts().longestAnswerHint, this.length),
      h(
        "div",
        { class: "setting-buttons" },
        h("button", { type: "button", class: "secondary reset", onclick: () => this.fill(DEFAULT_SETTINGS) }, texts().reset),
        h("button", { type: "button", class: "secondary", onclick: close }, texts().cancel),
        h("button", { type: "submit", class: "primary" }, texts().save),
      ),
    );
    for (const [name, input] of Object.entries({ instructions: this.instructions, temperature: this.temperature, length: this.length })) input.setAttribute("aria-describedby", `hint-${name} error-${name}`);
    this.element = h("dialog", { class: "settings", "aria-labelledby": "settings-title" }, form);
  }

  /** `longest`: returns the longest answer of a model; null: not known. */
  open(settings: Settings, models: readonly string[], defaultModel: string | null, longest: (model: string | null) => number | null): void {
    this.longest = longest;
    this.models.offer(models, defaultModel);
    this.fill(settings);
    this.element.showModal();
    // On touch screens a focused field would open a keyboard over half of the dialog.
    (matchMedia("(hover: hover)").matches ? this.instructions : this.title).focus();
  }

  private field(name: InvalidField, label: string, hint: string, input: HTMLElement): HTMLElement {
    return h("div", { class: "setting" }, h("label", { for: input.id }, label), input, h("p", { class: "hint", id: `hint-${name}` }, hint), this.errors[name]);
  }

  private fill({ model, instructions, temperature, length }: Settings): void {
    this.models.show(model);
    this.instructions.value = instructions;
    this.defaultTemperature.checked = temperature === null;
    this.temperature.value = temperature === null ? MIDDLE : String(temperature);
    this.length.value = length === null ? "" : String(length);
    this.drawTemperature();
    this.showErrors([], null);
  }

  private onSlide(): void {
    this.defaultTemperature.checked = false;
    this.drawTemperature();
  }

  private drawTemperature(): void {
    const isDefault = this.defaultTemperature.checked;
    const value = Number(this.temperature.value);
    this.temperature.dataset["usual"] = String(isDefault);
    const words = isDefault ? texts().byDefault : texts().decimal(value, temperatureDigits(value));
    this.temperature.setAttribute("aria-valuetext", words);
    setText(this.temperatureOutput, isDefault ? "" : words);
  }

  private onSubmit(event: Event): void {
    event.preventDefault();
    const model = this.models.value;
    const temperature = this.defaultTemperature.checked ? null : this.temperature.value;
    const length = this.length.value.trim() === "" ? null : this.length.value;
    const longest = this.longest(model);
    const settings = readInput(model, { instructions: this.instructions.value, temperature, length }, longest);
    if (isInvalid(settings)) {
      this.showErrors(settings, longest);
      return;
    }
    this.element.close();
    this.save(settings);
  }

  private showErrors(invalid: readonly InvalidField[], longest: number | null): void {
    const inputs = { instructions: this.instructions, temperature: this.temperature, length: this.length };
    for (const name of ["instructions", "temperature", "length"] as const) {
      const isInvalid = invalid.includes(name);
      inputs[name].setAttribute("aria-invalid", String(isInvalid));
      setText(this.errors[name], isInvalid ? invalidFieldWords(name, longest) : "");
    }
    const first = invalid[0];
    if (first !== undefined) inputs[first].focus();
  }
}

function isInvalid(settings: Settings | readonly InvalidField[]): settings is readonly InvalidField[] {
  return Array.isArray(settings);
}

function errorLine(name: InvalidField): HTMLElement {
  return h("p", { class: "wrong", id: `error-${name}`, role: "alert" });
}
