// What a dashboard may be: Grafana's own types, with the options of each kind of panel as that kind
// has them, and nothing besides. Grafana's enums are met by their values, as JSON has them.

import type * as grafana from '@grafana/schema';
import type * as bargauge from '@grafana/schema/dist/esm/raw/composable/bargauge/panelcfg/x/BarGaugePanelCfg_types.gen';
import type * as stat from '@grafana/schema/dist/esm/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen';
import type * as statetimeline from '@grafana/schema/dist/esm/raw/composable/statetimeline/panelcfg/x/StateTimelinePanelCfg_types.gen';
import type * as timeseries from '@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen';
import type * as xychart from '@grafana/schema/dist/esm/raw/composable/xychart/panelcfg/x/XYChartPanelCfg_types.gen';

// "multi" in place of TooltipDisplayMode.Multi, 1 in place of DashboardCursorSync.Crosshair.
type Value<T extends string | number> = T extends string
  ? `${T}`
  : `${T}` extends `${infer N extends number}`
    ? N
    : never;
type Plain<T> = T extends string | number
  ? Value<T>
  : T extends object
    ? { [K in keyof T]: Plain<T[K]> }
    : T;

type Source = { type: 'prometheus'; uid: '${datasource}' };

// The package has no types of Prometheus' queries: these are the keys that ours have.
interface Query {
  refId: string;
  datasource: Source;
  expr: string;
  legendFormat: string;
  editorMode: 'code';
  format: 'time_series' | 'table';
  instant: boolean;
  range: boolean;
}

// `custom` and `options` of Grafana's own type take anything.
type Field<Custom> = Omit<grafana.FieldConfig, 'custom'> & { custom?: Custom };

interface Kind<Name extends string, Options, Custom = Record<string, never>>
  extends Omit<grafana.Panel, 'type' | 'options' | 'fieldConfig' | 'datasource' | 'targets'> {
  type: Name;
  id: number;
  title: string;
  description: string;
  datasource: Source;
  options: Options;
  fieldConfig: {
    defaults: Field<Custom>;
    overrides: grafana.FieldConfigSource['overrides'];
  };
}

// The package has no types of the list of alerts: these are the keys that ours has.
interface AlertList {
  alertInstanceLabelFilter: string;
  alertName: string;
  dashboardAlerts: boolean;
  groupBy: string[];
  groupMode: 'default' | 'custom';
  maxItems: number;
  sortOrder: 1 | 2 | 3 | 4 | 5;
  stateFilter: Record<'error' | 'firing' | 'noData' | 'normal' | 'pending', boolean>;
  viewMode: 'list' | 'stat';
}

type Shown = Plain<
  | Kind<'bargauge', bargauge.Options>
  | Kind<'stat', stat.Options>
  | Kind<'state-timeline', statetimeline.Options, statetimeline.FieldConfig>
  | Kind<'table', grafana.TableOptions, grafana.TableFieldOptions>
  | Kind<'timeseries', timeseries.Options, timeseries.FieldConfig>
  | Kind<'xychart', xychart.Options, xychart.FieldConfig>
> & { targets: Query[] };

type Listed = Plain<Kind<'alertlist', AlertList>>;
type Panel = Shown | Listed;
type Row = Plain<Omit<grafana.RowPanel, 'panels'>> & { panels: Panel[] };

// Keys that the data source of Prometheus reads and the package does not name.
type Annotation = Plain<
  Omit<grafana.AnnotationQuery, 'target' | 'datasource'> & {
    datasource: Source;
    target: { expr: string; refId: string; legendFormat: string; datasource: Source };
    titleFormat: string;
    textFormat: string;
    tagKeys: string;
    useValueForTime: boolean;
  }
>;

export type Dashboard = Plain<Omit<grafana.Dashboard, 'panels' | 'annotations'>> & {
  uid: string;
  title: string;
  panels: (Panel | Row)[];
  annotations: { list: Annotation[] };
};
