// What a dashboard and its panels may be, by Grafana's own package. A test writes the dashboards
// below this text and lets tsc look.
import type { Dashboard } from '@grafana/schema';
import type * as heatmap from '@grafana/schema/dist/esm/raw/composable/heatmap/panelcfg/x/HeatmapPanelCfg_types.gen';
import type * as stat from '@grafana/schema/dist/esm/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen';
import type * as table from '@grafana/schema/dist/esm/raw/composable/table/panelcfg/x/TablePanelCfg_types.gen';
import type * as timeseries from '@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen';

// JSON has no enums: a member's value stands for the member.
type Plain<T> = T extends string ? `${T}`
  : T extends Array<infer U> ? Array<Plain<U>>
  : T extends object ? { [K in keyof T]: Plain<T[K]> }
  : T;

interface Options {
  heatmap: heatmap.Options;
  stat: stat.Options;
  table: Partial<table.Options>;
  timeseries: timeseries.Options;
}

const dashboard = (_: Plain<Dashboard>): void => {};
const options = <Kind extends keyof Options>(_: Kind, __: Plain<Options[Kind]>): void => {};
const lines = (_: Plain<timeseries.FieldConfig>): void => {};

// The check is awake: each of these is wrong.
// @ts-expect-error
dashboard({ schemaVersion: '42' });
// @ts-expect-error
dashboard({ schemaVersion: 42, tittle: 'unknown key' });
// @ts-expect-error
dashboard({ schemaVersion: 42, panels: [{ type: 'stat', gridPos: { x: 0, y: 0, w: 1, h: '1' } }] });
// @ts-expect-error
options('table', { showHeader: 'yes' });
// @ts-expect-error
lines({ drawStyle: 'scribble' });

