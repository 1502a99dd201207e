//! Plots in the shape of the papers' figures, as SVG; PNG is made from that.
//!
//! The same report gives the same bytes everywhere: text is measured without asking the system for fonts, and PNG uses a
//! font that is built in.

use std::sync::Arc;

use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use resvg::{tiny_skia, usvg};

use super::{Report, Run, percentile};

/// A plot.
#[derive(Clone, Debug)]
pub(crate) struct Plot {
    /// Name of its file, without extension.
    pub(crate) name: &'static str,
    /// The picture.
    pub(crate) svg: String,
}

/// The names of all plots that there are.
pub(crate) const NAMES: [&str; 4] = ["fct-cdf", "slowdown", "sweep", "throughput"];

/// A named curve.
#[derive(Clone, Default)]
struct Curve {
    /// What the legend calls it; the same name again is not repeated there.
    name: String,
    points: Vec<(f64, f64)>,
    colour: RGBColor,
    style: Style,
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Style {
    #[default]
    Line,
    /// One of many of a kind.
    Thin,
    /// What is no measurement, or the second of a pair.
    Dashed,
    /// Few points, each marked.
    Marked,
}

/// What stands above a plot.
struct Caption<'a> {
    title: &'a str,
    changed: &'a [String],
    /// The sweep's value, where the plot shows one of them.
    value: Option<&'a str>,
}

impl Caption<'_> {
    fn of(report: &Report) -> Caption<'_> {
        Caption { title: &report.title, changed: &report.changed, value: report.sweep_value.as_deref() }
    }

    /// What the title does not know, as far as there is room.
    fn changes(&self) -> String {
        const ROOM: usize = 110;
        let all: Vec<&str> = self.changed.iter().map(String::as_str).chain(self.value).collect();
        let text = if all.is_empty() { String::new() } else { format!("changed: {}", all.join(", ")) };
        match text.char_indices().nth(ROOM) {
            Some((end, _)) => format!("{} ...", &text[..end]),
            None => text,
        }
    }
}

/// How to write a number.
type Label = fn(f64) -> String;

/// What an axis shows, and how it writes that.
struct Axis {
    name: String,
    log: bool,
    label: Label,
}

const IDEAL: &str = "ideal";
const SIZE: (u32, u32) = (800, 480);
/// Height of title and legend.
const HEAD: u32 = 64;
/// Okabe and Ito's colours, told apart by everybody.
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];
/// Flows of a transport that are drawn: more cannot be told apart.
const DRAWN: usize = 64;
/// Points of a flow over time; what was sampled more often is merged.
const POINTS: usize = 250;

/// All plots that a report has the data for.
pub(crate) fn plots(report: &Report) -> Vec<Plot> {
    let all = [completion_times(report), slowdown_by_size(report), sweep(report), throughput(report)];
    all.into_iter().flatten().collect()
}

/// The picture as PNG, or what is wrong with it.
pub(crate) fn png(plot: &Plot) -> Result<Vec<u8>, String> {
    let mut options = usvg::Options { font_family: "Ubuntu".into(), ..usvg::Options::default() };
    let fonts = options.fontdb_mut();
    fonts.load_font_source(usvg::fontdb::Source::Binary(Arc::new(epaint_default_fonts::UBUNTU_LIGHT)));
    fonts.set_sans_serif_family("Ubuntu");
    let tree = usvg::Tree::from_str(&plot.svg, &options).map_err(|e| e.to_string())?;
    let mut pixels = tiny_skia::Pixmap::new(SIZE.0 * 2, SIZE.1 * 2).ok_or("no memory for the picture")?;
    resvg::render(&tree, tiny_skia::Transform::from_scale(2.0, 2.0), &mut pixels.as_mut());
    pixels.encode_png().map_err(|e| e.to_string())
}

/// Shares of a run's flows over the times in which they were complete: it ends below 1 if some did not finish.
pub(super) fn distribution(run: &Run) -> Vec<(f64, f64)> {
    let sized = run.flows.iter().filter(|f| !f.background && f.bytes.is_some());
    let n = sized.clone().count() as f64;
    let mut times: Vec<f64> = sized.filter_map(|f| f.fct_us).collect();
    times.sort_by(f64::total_cmp);
    times.iter().enumerate().flat_map(|(i, t)| [(*t, i as f64 / n), (*t, (i + 1) as f64 / n)]).collect()
}

/// Cumulative distribution of completion times, and the ideal (the paper's figures 3 and 6).
fn completion_times(report: &Report) -> Option<Plot> {
    let curve = |(i, run): (usize, &Run)| Curve {
        name: run.transport.clone(),
        points: distribution(run),
        colour: colour(i),
        style: Style::Line,
    };
    let mut curves: Vec<Curve> = report.runs().enumerate().map(curve).filter(|c| !c.points.is_empty()).collect();
    curves.first()?;
    let ideal = report.run.ideal_fct_us;
    if ideal > 0.0 {
        curves.push(dashed(IDEAL, vec![(ideal, 0.0), (ideal, 1.0)]));
    }
    let unit = time_unit(&mut curves, |p| &mut p.0);
    let log = spread(&curves, |p| p.0) > 8.0;
    let x = Axis { name: format!("flow completion time, {unit}"), log, label: plain };
    draw("fct-cdf", &Caption::of(report), x, Axis { name: "share of flows".into(), log: false, label: plain }, &curves)
}

/// Median and 99th percentile of completion time over ideal, by flow size.
fn slowdown_by_size(report: &Report) -> Option<Plot> {
    let mut curves = Vec::new();
    for (i, run) in report.runs().enumerate() {
        let mut flows: Vec<(f64, f64)> =
            run.flows.iter().filter(|f| !f.background).filter_map(|f| Some((f.bytes? as f64, f.over_ideal?))).collect();
        flows.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (first, last) = (flows.first()?.0, flows.last()?.0);
        if last < 4.0 * first {
            return None;
        }
        for (name, q, style) in [("median", 0.5, Style::Line), ("p99", 0.99, Style::Dashed)] {
            let points = flows.chunks(flows.len().div_ceil(20)).filter_map(|chunk| {
                let mut over: Vec<f64> = chunk.iter().map(|f| f.1).collect();
                over.sort_by(f64::total_cmp);
                Some((chunk[chunk.len() / 2].0, percentile(&over, q)?))
            });
            let (name, points) = (format!("{} {name}", run.transport), points.collect());
            curves.push(Curve { name, points, colour: colour(i), style });
        }
    }
    let y = Axis { name: "completion time over ideal".into(), log: true, label: plain };
    let x = Axis { name: "flow size".into(), log: true, label: size };
    draw("slowdown", &Caption::of(report), x, y, &curves)
}

/// The slowest flow against a parameter (the paper's figure 2, where that is the size). Where not all flows finished, nobody knows
/// what the slowest would have taken, and there is no point.
fn sweep(report: &Report) -> Option<Plot> {
    let name = report.sweep.first()?.parameter.clone();
    let mut curves: Vec<Curve> = Vec::new();
    let mut ideal = Vec::new();
    let mut label: Label = plain;
    for p in &report.sweep {
        let (x, of) = leading_number(&p.value)?;
        label = of;
        let Some(slowest) = p.summary.max_fct_us.filter(|_| p.summary.unfinished == 0) else { continue };
        let point = (x, slowest);
        match curves.iter_mut().find(|c| c.name == p.transport) {
            Some(curve) => curve.points.push(point),
            None => curves.push(Curve {
                name: p.transport.clone(),
                points: vec![point],
                colour: colour(curves.len()),
                style: Style::Marked,
            }),
        }
        if p.transport == report.run.transport {
            ideal.push((x, p.ideal_fct_us));
        }
    }
    curves.first()?;
    curves.push(dashed(IDEAL, ideal));
    let unit = time_unit(&mut curves, |p| &mut p.1);
    let x = Axis { name, log: spread(&curves, |p| p.0) > 8.0, label };
    let log = spread(&curves, |p| p.1) > 8.0;
    let y = Axis { name: format!("largest completion time, {unit}"), log, label: plain };
    draw("sweep", &Caption { value: None, ..Caption::of(report) }, x, y, &curves)
}

/// Throughput over time, a line per flow (the paper's figure 4), and what equal shares would be.
fn throughput(report: &Report) -> Option<Plot> {
    let mut curves = Vec::new();
    let mut interval = 0.0;
    for (i, run) in report.runs().enumerate() {
        let Some(samples) = &run.samples else { continue };
        let count = samples.gbps.iter().map(Vec::len).max()?;
        let merged = count.div_ceil(POINTS).max(1);
        interval = samples.interval_us * merged as f64;
        let mean = |flow: usize, k: usize| {
            let values = samples.gbps[flow].get(k * merged..((k + 1) * merged).min(count))?;
            Some(values.iter().sum::<f64>() / values.len() as f64)
        };
        let time = |k: usize| (k as f64 + 0.5) * interval;
        let mut order: Vec<usize> = (0..run.flows.len()).filter(|f| !run.flows[*f].background).collect();
        order.sort_by_key(|f| run.flows[*f].delivered);
        for flow in order.iter().step_by(order.len().div_ceil(DRAWN).max(1)) {
            let active = (0..count.div_ceil(merged)).filter(|k| run.flows[*flow].is_active(time(*k)));
            let points = active.filter_map(|k| Some((time(k), mean(*flow, k)?)));
            let (name, points) = (run.transport.clone(), points.collect());
            curves.push(Curve { name, points, colour: colour(i), style: Style::Thin });
        }
        let receiver = order.first().map(|f| &run.flows[*f].to);
        if i == 0 && order.iter().all(|f| Some(&run.flows[*f].to) == receiver) {
            let share = |k: usize| {
                let active = order.iter().filter(|f| run.flows[**f].is_active(time(k)));
                let (n, sum) =
                    active.filter_map(|f| mean(*f, k)).fold((0.0, 0.0), |(n, sum), rate| (n + 1.0, sum + rate));
                (n > 0.0).then(|| (time(k), sum / n))
            };
            let name = format!("equal shares of what {} gets", run.transport);
            curves.push(dashed(&name, (0..count.div_ceil(merged)).filter_map(share).collect()));
        }
    }
    curves.first()?;
    let unit = time_unit(&mut curves, |p| &mut p.0);
    let (of, scale) = unit_of(interval);
    let name = format!("time, {unit} (samples of {} {of})", plain(interval / scale));
    let slow = curves.iter().flat_map(|c| &c.points).all(|p| p.1 < 1.0);
    if slow {
        curves.iter_mut().flat_map(|c| &mut c.points).for_each(|p| p.1 *= 1e3);
    }
    let y = Axis {
        name: format!("throughput of each flow, {}bit/s", if slow { "M" } else { "G" }),
        log: false,
        label: plain,
    };
    draw("throughput", &Caption::of(report), Axis { name, log: false, label: plain }, y, &curves)
}

fn colour(i: usize) -> RGBColor {
    COLOURS[i % COLOURS.len()]
}

fn dashed(name: &str, points: Vec<(f64, f64)>) -> Curve {
    Curve { name: name.into(), points, colour: BLACK, style: Style::Dashed }
}

/// Turns microseconds into the unit in which the largest value is easiest to read, and says which that is.
fn time_unit(curves: &mut [Curve], at: fn(&mut (f64, f64)) -> &mut f64) -> &'static str {
    let points = |curves: &mut [Curve], f: &mut dyn FnMut(&mut f64)| {
        curves.iter_mut().flat_map(|c| &mut c.points).for_each(|p| f(at(p)));
    };
    let mut largest = 0f64;
    points(curves, &mut |v| largest = largest.max(*v));
    let (unit, scale) = unit_of(largest);
    points(curves, &mut |v| *v /= scale);
    unit
}

/// The unit that suits so many microseconds, and how many of them it has.
fn unit_of(us: f64) -> (&'static str, f64) {
    [("s", 1e6), ("ms", 1e3)].into_iter().find(|u| us >= u.1).unwrap_or(("us", 1.0))
}

/// Largest over smallest coordinate; nothing if one is zero, which has no place on a logarithmic axis.
fn spread(curves: &[Curve], f: impl Fn(&(f64, f64)) -> f64) -> f64 {
    let values = || curves.iter().flat_map(|c| c.points.iter().map(&f));
    let least = values().fold(f64::MAX, f64::min);
    if least > 0.0 { values().fold(f64::MIN, f64::max) / least } else { 0.0 }
}

/// The number that a value of a parameter begins with, in bytes, seconds or bits per second if it has such a unit, and how to
/// write it.
pub(super) fn leading_number(text: &str) -> Option<(f64, Label)> {
    let text = text.trim_matches('"');
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let number = text[..end].parse::<f64>().ok()?;
    let (scale, label): (f64, Label) = match text[end..].trim().to_ascii_lowercase().as_str() {
        "b" => (1.0, size),
        "kb" => (1e3, size),
        "mb" => (1e6, size),
        "gb" => (1e9, size),
        "kib" => (1024.0, size),
        "mib" => (1_048_576.0, size),
        "gib" => (1_073_741_824.0, size),
        "ns" => (1e-9, time),
        "us" => (1e-6, time),
        "ms" => (1e-3, time),
        "s" => (1.0, time),
        "bps" => (1.0, rate),
        "kbps" | "k" => (1e3, rate),
        "mbps" | "m" => (1e6, rate),
        "gbps" | "g" => (1e9, rate),
        "tbps" => (1e12, rate),
        _ => (1.0, plain),
    };
    Some((number * scale, label))
}

/// A number, to four digits.
fn plain(v: f64) -> String {
    let digits = if v == 0.0 { 0 } else { (3 - v.abs().log10().floor() as i32).clamp(0, 9) };
    let scale = 10f64.powi(digits);
    format!("{}", (v * scale).round() / scale)
}

/// A number in the largest of these units that it fills, which are in order; or in the last.
fn with_unit(v: f64, units: &[(&str, f64)]) -> String {
    // A little less than 1 ms is 1 ms.
    let fits = units.iter().find(|u| v >= u.1 * (1.0 - 1e-9)).or(units.last());
    fits.map_or_else(String::new, |(unit, scale)| format!("{} {unit}", plain(v / scale)))
}

fn size(bytes: f64) -> String {
    with_unit(bytes, &[("GB", 1e9), ("MB", 1e6), ("KB", 1e3), ("B", 1.0)])
}

fn time(seconds: f64) -> String {
    with_unit(seconds, &[("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9)])
}

fn rate(bits: f64) -> String {
    with_unit(bits, &[("Tbit/s", 1e12), ("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3), ("bit/s", 1.0)])
}

fn draw(name: &'static str, caption: &Caption<'_>, x: Axis, y: Axis, curves: &[Curve]) -> Option<Plot> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        area.fill(&WHITE).ok()?;
        let (head, body) = area.split_vertically(HEAD);
        heading(&head, caption, curves)?;
        let range = |axis: &Axis, f: fn(&(f64, f64)) -> f64| {
            let values = || curves.iter().flat_map(|c| c.points.iter().map(f));
            let (low, high) = (values().fold(f64::MAX, f64::min), values().fold(f64::MIN, f64::max));
            if axis.log { low.max(1e-9) * 0.9..high * 1.1 } else { 0.0..high * 1.05 + 1e-9 }
        };
        let (rx, ry) = (range(&x, |p| p.0), range(&y, |p| p.1));
        match (x.log, y.log) {
            (false, false) => chart(&body, &x, &y, rx, ry, curves),
            (true, false) => chart(&body, &x, &y, rx.log_scale(), ry, curves),
            (false, true) => chart(&body, &x, &y, rx, ry.log_scale(), curves),
            (true, true) => chart(&body, &x, &y, rx.log_scale(), ry.log_scale(), curves),
        }?;
        area.present().ok()?;
    }
    Some(Plot { name, svg })
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Title and legend, above the chart, where they hide nothing.
fn heading(area: &Area<'_>, caption: &Caption<'_>, curves: &[Curve]) -> Option<()> {
    const SAMPLE: i32 = 24;
    const GAP: i32 = 22;
    let middle = SIZE.0 as i32 / 2;
    let font = |size: i32, h: HPos| ("sans-serif", size).into_text_style(area).pos(Pos::new(h, VPos::Center));
    let changes = caption.changes();
    let (title, legend) = if changes.is_empty() { (24, 50) } else { (16, 53) };
    area.draw(&Text::new(caption.title, (middle, title), font(19, HPos::Center))).ok()?;
    if !changes.is_empty() {
        area.draw(&Text::new(changes, (middle, 34), font(13, HPos::Center))).ok()?;
    }
    let mut entries: Vec<&Curve> = Vec::new();
    for curve in curves {
        if entries.iter().all(|e| e.name != curve.name) {
            entries.push(curve);
        }
    }
    let style = font(14, HPos::Left);
    let width = |c: &Curve| area.estimate_text_size(&c.name, &style).map_or(60, |s| s.0 as i32) + SAMPLE + 6;
    let total: i32 = entries.iter().map(|c| width(c) + GAP).sum::<i32>() - GAP;
    let (mut x, y) = (middle - total / 2, legend);
    for curve in entries {
        let line = [(x, y), (x + SAMPLE, y)];
        let stroke = curve.colour.stroke_width(2);
        match curve.style {
            Style::Dashed => area.draw(&DashedPathElement::new(line, 5, 4, stroke)),
            _ => area.draw(&PathElement::new(line, stroke)),
        }
        .ok()?;
        area.draw(&Text::new(curve.name.as_str(), (x + SAMPLE + 6, y), style.clone())).ok()?;
        x += width(curve) + GAP;
    }
    Some(())
}

fn chart<X, Y>(area: &Area<'_>, x: &Axis, y: &Axis, rx: X, ry: Y, curves: &[Curve]) -> Option<()>
where
    X: AsRangedCoord<Value = f64>,
    Y: AsRangedCoord<Value = f64>,
    X::CoordDescType: ValueFormatter<f64>,
    Y::CoordDescType: ValueFormatter<f64>,
{
    let mut builder = ChartBuilder::on(area);
    builder.margin(12).margin_top(2).margin_right(20).x_label_area_size(44).y_label_area_size(64);
    let mut chart = builder.build_cartesian_2d(rx, ry).ok()?;
    let (of_x, of_y) = (|v: &f64| (x.label)(*v), |v: &f64| (y.label)(*v));
    let mut mesh = chart.configure_mesh();
    mesh.x_desc(&x.name).y_desc(&y.name).x_label_formatter(&of_x).y_label_formatter(&of_y);
    mesh.label_style(("sans-serif", 14)).bold_line_style(BLACK.mix(0.15)).light_line_style(WHITE).draw().ok()?;
    // The first are the most important ones: they lie on top. Lines that are no measurement hide none.
    let (dashed, others): (Vec<_>, Vec<_>) = curves.iter().rev().partition(|c| c.colour == BLACK);
    for curve in others.into_iter().chain(dashed) {
        let points = curve.points.iter().copied();
        let line = curve.colour.stroke_width(2);
        match curve.style {
            Style::Line => chart.draw_series(LineSeries::new(points, line)).map(drop),
            Style::Thin => chart.draw_series(LineSeries::new(points, curve.colour.mix(0.6).stroke_width(1))).map(drop),
            Style::Dashed => chart.draw_series(DashedLineSeries::new(points, 5, 4, line)).map(drop),
            Style::Marked => {
                let line = LineSeries::new(points, curve.colour.filled().stroke_width(2)).point_size(3);
                chart.draw_series(line).map(drop)
            }
        }
        .ok()?;
    }
    Some(())
}
