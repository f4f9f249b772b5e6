// Draws dashboards with Grafana's own components, from what Prometheus answered: data.js has both.
// index.html?board=N&mode=dark. Every panel says how it went in data-state: drawn, explained (there
// is no data, and it says why), empty, failed.
import 'uplot/dist/uPlot.min.css';
import React from 'react';
import { createRoot } from 'react-dom/client';
import {
  FieldType, ThemeContext, createTheme, dateTime, getDisplayProcessor, getFieldDisplayName,
  standardTransformers, standardTransformersRegistry, toDataFrame, transformDataFrame,
} from '@grafana/data';
import { BigValue, GlobalStyles, TimeSeries } from '@grafana/ui';

const asked = new URLSearchParams(location.search);
const board = window.DATA.boards[Number(asked.get('board'))];
const theme = createTheme({ colors: { mode: asked.get('mode') } });
const [from, to] = [window.DATA.from, window.DATA.to].map((seconds) => dateTime(1000 * seconds));
const range = { from, to, raw: { from, to } };
const CELL = { width: 1600 / 24, height: 38, gap: 8 };

standardTransformersRegistry.setInit(() =>
  [standardTransformers.filterFieldsByNameTransformer, standardTransformers.organizeFieldsTransformer]
    .map((one) => ({ id: one.id, name: one.name, transformation: one })));

// ---- data -> frames, as the Prometheus data source makes them

function named(legend, labels) {
  return legend === '__auto' ? Object.values(labels).join(' ')
    : legend.replace(/\{\{\s*(\w+)\s*\}\}/g, (_, label) => labels[label] ?? '');
}

function lineFrames(target) {
  return target.result.map((series) => toDataFrame({
    refId: target.refId,
    fields: [
      { name: 'Time', type: FieldType.time, values: series.values.map(([at]) => 1000 * at) },
      {
        name: 'Value', type: FieldType.number, labels: series.metric, values: series.values.map(([, value]) => Number(value)),
        config: { displayNameFromDS: named(target.legendFormat, series.metric) },
      },
    ],
  }));
}

function tableFrame(target) {
  const labels = [...new Set(target.result.flatMap((one) => Object.keys(one.metric)))].sort();
  return toDataFrame({
    refId: target.refId,
    fields: [
      { name: 'Time', type: FieldType.time, values: target.result.map((one) => 1000 * one.value[0]) },
      ...labels.map((name) => ({ name, type: FieldType.string, values: target.result.map((one) => one.metric[name] ?? '') })),
      { name: 'Value', type: FieldType.number, values: target.result.map((one) => Number(one.value[1])) },
    ],
  });
}

// What a panel's own defaults would be where the dashboard says nothing.
const LINE = {
  axisPlacement: 'auto', hideFrom: { viz: false, legend: false, tooltip: false }, lineInterpolation: 'linear',
  pointSize: 5, scaleDistribution: { type: 'linear' }, thresholdsStyle: { mode: 'off' },
};

function configured(panel, frames) {
  const { defaults, overrides } = panel.fieldConfig;
  frames.forEach((frame, at) => frame.fields.forEach((field) => {
    const number = field.type === FieldType.number;
    if (number) {
      field.config = { color: { mode: 'palette-classic' }, ...defaults, ...field.config, custom: { ...LINE, ...defaults.custom } };
      field.state = { seriesIndex: at };
      const name = getFieldDisplayName(field, frame, frames);
      for (const { matcher, properties } of overrides) {
        if (matcher.id !== 'byName') throw new Error(`a matcher ${matcher.id}`);
        if (matcher.options !== name) continue;
        for (const { id, value } of properties) field.config.custom[id.replace('custom.', '')] = value;
      }
    }
    field.display = getDisplayProcessor({ field, theme });
  }));
  return frames;
}

// ---- panels

function Lines({ panel, width, height }) {
  const frames = configured(panel, panel.targets.flatMap(lineFrames));
  return <TimeSeries frames={frames} structureRev={1} timeRange={range} timeZone="utc" width={width} height={height}
    legend={panel.options.legend} options={panel.options} replaceVariables={(text) => text} />;
}

function Stat({ panel, width, height }) {
  const [frame] = configured(panel, panel.targets.map(tableFrame));
  const field = frame.fields.find((one) => one.type === FieldType.number);
  const { colorMode, graphMode, justifyMode, textMode } = panel.options;
  return <BigValue width={width} height={height} theme={theme} value={field.display(field.values[0])}
    colorMode={colorMode} graphMode={graphMode} justifyMode={justifyMode} textMode={textMode} count={1} />;
}

function TableOf({ panel }) {
  const [made, setMade] = React.useState(null);
  React.useEffect(() => {
    const done = transformDataFrame(panel.transformations, panel.targets.map(tableFrame))
      .subscribe((frames) => setMade(configured(panel, frames)[0]));
    return () => done.unsubscribe();
  }, []);
  if (!made) return null;
  const cell = (field, row) => { const { prefix = '', text, suffix = '' } = field.display(field.values[row]); return prefix + text + suffix; };
  const style = { textAlign: 'left', padding: '4px 8px', borderBottom: `1px solid ${theme.colors.border.weak}` };
  return <table style={{ width: '100%', fontSize: 12 }}>
    <thead><tr>{made.fields.map((one) => <th key={one.name} style={style}>{getFieldDisplayName(one, made)}</th>)}</tr></thead>
    <tbody>{[...Array(made.length).keys()].map((row) =>
      <tr key={row}>{made.fields.map((one) => <td key={one.name} style={style}>{cell(one, row)}</td>)}</tr>)}</tbody>
  </table>;
}

// Grafana's own heatmap is no part of its library: the counts of each bucket, darker for more.
function Heat({ panel, width, height }) {
  const edge = (series) => Number(series.metric.le.replace('+Inf', 'Infinity'));
  const below = panel.targets.flatMap((one) => one.result).sort((a, b) => edge(a) - edge(b));
  const counts = below.map((series, at) => series.values.map(([when, value]) => {
    const less = at ? below[at - 1].values.find(([other]) => other === when)?.[1] ?? 0 : 0;
    return [when, Math.max(0, Number(value) - Number(less))];
  }));
  const most = Math.max(1e-9, ...counts.flat().map(([, many]) => many));
  const [w, h] = [(width - 60) / (window.DATA.to - window.DATA.from), height / counts.length];
  return <svg width={width} height={height} style={{ fontSize: 10, fill: theme.colors.text.secondary }}>
    {counts.map((row, at) => row.map(([when, many]) => many > 0 && <rect key={`${at} ${when}`} fill="darkorange"
      x={60 + (when - window.DATA.from - 1) * w} y={height - (at + 1) * h} width={w + 0.5} height={h} opacity={Math.sqrt(many / most)} />))}
    {below.map((series, at) => at % 2 === 0 && <text key={at} x={0} y={height - at * h - 2}>{series.metric.le}</text>)}
  </svg>;
}

const KINDS = { timeseries: Lines, stat: Stat, table: TableOf, heatmap: Heat };

class Fence extends React.Component {
  state = { error: null };
  static getDerivedStateFromError(error) { return { error }; }
  render() { return this.state.error ? <pre data-failed="">{String(this.state.error.stack)}</pre> : this.props.children; }
}

function Panel({ panel }) {
  const { x, y, w, h } = panel.gridPos;
  const [width, height] = [w * CELL.width - CELL.gap, h * CELL.height - CELL.gap];
  const style = { position: 'absolute', left: x * CELL.width, top: y * CELL.height, width, height, overflow: 'hidden', boxSizing: 'border-box' };
  if (panel.type === 'row') return <div style={{ ...style, padding: 8, fontWeight: 500 }}>{panel.title}</div>;
  const there = panel.targets.some((one) => one.result.length);
  const { noValue } = panel.fieldConfig.defaults;
  const Kind = KINDS[panel.type];
  const words = { textAlign: 'center', paddingTop: height / 3, color: theme.colors.text.secondary };
  return <section data-panel={panel.title} data-state={there ? 'drawn' : noValue ? 'explained' : 'empty'}
    style={{ ...style, background: theme.colors.background.primary, border: `1px solid ${theme.colors.border.weak}` }}>
    <div style={{ padding: '6px 8px', fontWeight: 500 }}>{panel.title}</div>
    <div style={{ padding: '0 8px' }}>{there
      ? <Fence><Kind panel={panel} width={width - 18} height={height - 44} /></Fence>
      : <div style={words}>{noValue ?? 'No data'}</div>}</div>
  </section>;
}

function Drawn() {
  React.useEffect(() => { setTimeout(() => { window.drawn = true; }, 300); }, []);
  const tall = Math.max(...board.panels.map(({ gridPos: { y, h } }) => (y + h) * CELL.height));
  return <ThemeContext.Provider value={theme}><GlobalStyles />
    <div style={{ padding: 16, background: theme.colors.background.canvas }}>
      <h3>{board.title}</h3>
      <div style={{ position: 'relative', height: tall }}>{board.panels.map((one) => <Panel key={one.id} panel={one} />)}</div>
    </div>
  </ThemeContext.Provider>;
}

createRoot(document.getElementById('root')).render(<Drawn />);
