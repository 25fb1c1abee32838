import { h } from "./dom";

/** A choice among the models of this server. */
export class ModelChoice {
  readonly element = h("select", { class: "models", hidden: true, onchange: () => this.onChoice(this.value) });
  private models: readonly string[] = [];
  private defaultModel: string | null = null;
  private label: HTMLElement | null = null;

  constructor(
    id: string,
    private readonly onChoice: (model: string | null) => void = () => undefined,
  ) {
    this.element.id = id;
  }

  /** The choice with its label. It is hidden where there are no models. */
  field(label: HTMLElement): HTMLElement {
    this.label = h("div", { class: "setting", hidden: true }, label, this.element);
    return this.label;
  }

  /** `defaultModel`: the model of requests without a model. */
  offer(models: readonly string[], defaultModel: string | null): void {
    this.defaultModel = defaultModel;
    if (models.join("\n") === this.models.join("\n")) return; // an open list stays open
    this.models = models;
    this.element.replaceChildren(...models.map((name) => h("option", { value: name }, name)));
    this.element.hidden = models.length === 0;
    this.element.disabled = models.length < 2;
    if (this.label !== null) this.label.hidden = models.length === 0;
  }

  show(model: string | null): void {
    const value = model ?? this.defaultModel ?? "";
    if (this.element.value !== value) this.element.value = value;
  }

  get value(): string | null {
    return this.element.value === "" ? null : this.element.value;
  }
}
