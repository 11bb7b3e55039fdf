/** Defaults of options. */

/** `base`, overridden by what is given; undefined counts as not given, null as given. */
export function withDefaults<T extends object>(base: T, given: Partial<T> = {}): T {
  const said = Object.entries(given).filter(([, value]) => value !== undefined);
  return { ...base, ...Object.fromEntries(said) };
}
