//! Plots in the shape of the papers' figures, as SVG; PNG is made from that.
//!
//! The same report gives the same bytes everywhere: text is measured without asking the system for fonts, and PNG uses a
//! font that is built in.

use std::sync::Arc;

use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;
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

/// A named curve.
struct Curve {
    name: String,
    points: Vec<(f64, f64)>,
}

/// What an axis shows.
struct Axis {
    name: String,
    log: bool,
}

/// The curve that is no measurement.
const IDEAL: &str = "ideal";
const SIZE: (u32, u32) = (800, 480);
/// Okabe and Ito's colours, told apart by everybody.
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];

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

/// Cumulative distribution of completion times, and the ideal (the paper's figures 3 and 6).
fn completion_times(report: &Report) -> Option<Plot> {
    let curve = |run: &Run| {
        let mut times: Vec<f64> = run.flows.iter().filter(|f| !f.background).filter_map(|f| f.fct_us).collect();
        times.sort_by(f64::total_cmp);
        let n = times.len() as f64;
        let points = times.iter().enumerate().flat_map(|(i, t)| [(*t, i as f64 / n), (*t, (i + 1) as f64 / n)]);
        Curve { name: run.transport.clone(), points: points.collect() }
    };
    let mut curves: Vec<Curve> = report.runs().map(curve).filter(|c| !c.points.is_empty()).collect();
    curves.first()?;
    let ideal = report.run.ideal_fct_us;
    if ideal > 0.0 {
        curves.push(Curve { name: IDEAL.into(), points: vec![(ideal, 0.0), (ideal, 1.0)] });
    }
    let log = spread(&curves, |p| p.0) > 8.0;
    let x = Axis { name: "flow completion time, us".into(), log };
    draw("fct-cdf", &report.title, x, Axis { name: "share of flows".into(), log: false }, &curves)
}

/// Median and 99th percentile of completion time over ideal, by flow size.
fn slowdown_by_size(report: &Report) -> Option<Plot> {
    let mut curves = Vec::new();
    for run in report.runs() {
        let mut flows: Vec<(f64, f64)> =
            run.flows.iter().filter(|f| !f.background).filter_map(|f| Some((f.bytes? as f64, f.over_ideal?))).collect();
        flows.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (first, last) = (flows.first()?.0, flows.last()?.0);
        if last < 4.0 * first {
            return None;
        }
        for (name, q) in [("median", 0.5), ("p99", 0.99)] {
            let points = flows.chunks(flows.len().div_ceil(20)).filter_map(|chunk| {
                let mut over: Vec<f64> = chunk.iter().map(|f| f.1).collect();
                over.sort_by(f64::total_cmp);
                Some((chunk[chunk.len() / 2].0, percentile(&over, q)?))
            });
            curves.push(Curve { name: format!("{} {name}", run.transport), points: points.collect() });
        }
    }
    let y = Axis { name: "completion time over ideal".into(), log: true };
    draw("slowdown", &report.title, Axis { name: "flow size, bytes".into(), log: true }, y, &curves)
}

/// The slowest flow against a parameter (the paper's figure 2, where that is the size).
fn sweep(report: &Report) -> Option<Plot> {
    let name = report.sweep.first()?.parameter.clone();
    let mut curves: Vec<Curve> = Vec::new();
    let mut add = |name: &str, point: (f64, f64)| match curves.iter_mut().find(|c| c.name == name) {
        Some(curve) => curve.points.push(point),
        None => curves.push(Curve { name: name.into(), points: vec![point] }),
    };
    for p in &report.sweep {
        let x = leading_number(&p.value)?;
        add(&p.transport, (x, p.summary.max_fct_us?));
        if p.transport == report.run.transport {
            add(IDEAL, (x, p.ideal_fct_us));
        }
    }
    let log = spread(&curves, |p| p.0) > 8.0;
    let y = Axis { name: "largest completion time, us".into(), log: spread(&curves, |p| p.1) > 8.0 };
    draw("sweep", &report.title, Axis { name, log }, y, &curves)
}

/// Throughput over time of the flows that got least and most (the paper's figure 4).
fn throughput(report: &Report) -> Option<Plot> {
    let mut curves = Vec::new();
    let mut interval = 0.0;
    for run in report.runs() {
        let Some(samples) = &run.samples else { continue };
        interval = samples.interval_us;
        let mut order: Vec<usize> = (0..samples.gbps.len()).filter(|i| !samples.gbps[*i].is_empty()).collect();
        order.sort_by(|a, b| run.flows[*a].delivered.cmp(&run.flows[*b].delivered));
        let (Some(least), Some(most)) = (order.first(), order.last()) else { continue };
        for (name, flow) in [("least", *least), ("most", *most)] {
            let points = samples.gbps[flow].iter().enumerate().map(|(k, v)| ((k + 1) as f64 * interval / 1e3, *v));
            curves.push(Curve { name: format!("{} {name}", run.transport), points: points.collect() });
        }
    }
    curves.first()?;
    let x = Axis { name: format!("time, ms (samples of {:.2} ms)", interval / 1e3), log: false };
    draw("throughput", &report.title, x, Axis { name: "throughput of a flow, Gbit/s".into(), log: false }, &curves)
}

/// Largest over smallest coordinate.
fn spread(curves: &[Curve], f: impl Fn(&(f64, f64)) -> f64) -> f64 {
    let values = || curves.iter().flat_map(|c| c.points.iter().map(&f));
    values().fold(f64::MIN, f64::max) / values().fold(f64::MAX, f64::min).max(1e-9)
}

/// The number that a value of a parameter begins with, with its unit if that is a size.
fn leading_number(text: &str) -> Option<f64> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let scale = match text[end..].trim().to_ascii_lowercase().as_str() {
        "kb" => 1e3,
        "mb" => 1e6,
        "kib" => 1024.0,
        "mib" => 1_048_576.0,
        _ => 1.0,
    };
    Some(text[..end].parse::<f64>().ok()? * scale)
}

fn draw(name: &'static str, title: &str, x: Axis, y: Axis, curves: &[Curve]) -> Option<Plot> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        area.fill(&WHITE).ok()?;
        let range = |axis: &Axis, f: fn(&(f64, f64)) -> f64| {
            let values = || curves.iter().flat_map(|c| c.points.iter().map(f));
            let (low, high) = (values().fold(f64::MAX, f64::min), values().fold(f64::MIN, f64::max));
            if axis.log { low.max(1e-9) * 0.9..high * 1.1 } else { 0.0..high * 1.05 + 1e-9 }
        };
        let (rx, ry) = (range(&x, |p| p.0), range(&y, |p| p.1));
        match (x.log, y.log) {
            (false, false) => chart(&area, title, &x, &y, rx, ry, curves),
            (true, false) => chart(&area, title, &x, &y, rx.log_scale(), ry, curves),
            (false, true) => chart(&area, title, &x, &y, rx, ry.log_scale(), curves),
            (true, true) => chart(&area, title, &x, &y, rx.log_scale(), ry.log_scale(), curves),
        }?;
        area.present().ok()?;
    }
    Some(Plot { name, svg })
}

fn chart<X, Y>(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    title: &str,
    x: &Axis,
    y: &Axis,
    rx: X,
    ry: Y,
    curves: &[Curve],
) -> Option<()>
where
    X: AsRangedCoord<Value = f64>,
    Y: AsRangedCoord<Value = f64>,
    X::CoordDescType: ValueFormatter<f64>,
    Y::CoordDescType: ValueFormatter<f64>,
{
    let mut builder = ChartBuilder::on(area);
    builder.caption(title, ("sans-serif", 20)).margin(12).x_label_area_size(44).y_label_area_size(64);
    let mut chart = builder.build_cartesian_2d(rx, ry).ok()?;
    let label = |v: &f64| if *v >= 1e6 { format!("{:.3e}", v) } else { format!("{}", (v * 1e3).round() / 1e3) };
    let mut mesh = chart.configure_mesh();
    mesh.x_desc(&x.name).y_desc(&y.name).x_label_formatter(&label).y_label_formatter(&label);
    mesh.label_style(("sans-serif", 14)).light_line_style(WHITE).draw().ok()?;
    for (i, curve) in curves.iter().enumerate() {
        let colour = if curve.name == IDEAL { BLACK } else { COLOURS[i % COLOURS.len()] };
        let style = colour.stroke_width(2);
        let line =
            LineSeries::new(curve.points.iter().copied(), style).point_size(u32::from(curve.points.len() < 20) * 3);
        chart
            .draw_series(line)
            .ok()?
            .label(curve.name.as_str())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
    }
    // Where curves of this kind leave room: distributions at the bottom, what grows with size at the top left.
    let legend = match (x.log, y.log, y.name.starts_with("share")) {
        (_, _, true) => SeriesLabelPosition::LowerRight,
        (true, ..) => SeriesLabelPosition::UpperLeft,
        _ => SeriesLabelPosition::MiddleRight,
    };
    let mut labels = chart.configure_series_labels();
    labels.border_style(BLACK.mix(0.3)).background_style(WHITE.mix(0.85)).label_font(("sans-serif", 14));
    labels.position(legend).draw().ok()
}
