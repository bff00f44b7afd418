// The types of vendor.js, from the packages that it is made of.
import type { VNode } from "preact";

export type { Component, ComponentChildren, ComponentType, FunctionComponent, RefObject, VNode } from "preact";
export type { ReadonlySignal, Signal } from "@preact/signals";
export { h, render } from "preact";
export { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
export { batch, computed, signal, useSignal } from "@preact/signals";
export declare function html(strings: TemplateStringsArray, ...values: unknown[]): VNode<any>;
