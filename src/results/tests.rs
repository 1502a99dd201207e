//! What follows from known flows.

use super::stats::jain;
use super::*;

fn flow(n: usize, fct: Option<f64>) -> Flow {
    let over_ideal = Some(fct.unwrap_or(400.0) / 100.0);
    Flow { flow: n, bytes: Some(1000), fct_us: fct, over_ideal, goodput_gbps: 2.0, start_us: 5.0, ..Flow::default() }
}

fn run(seed: u64, times: &[Option<f64>]) -> Run {
    let flows: Vec<Flow> = times.iter().enumerate().map(|(i, t)| flow(i, *t)).collect();
    let summary = Summary::of_flows(&flows, None);
    Run { transport: "srd".into(), seed, ideal_fct_us: 100.0, summary, flows, ..Run::default() }
}

#[test]
fn percentiles_and_fairness() {
    let sorted: Vec<f64> = (1..=100).map(f64::from).collect();
    let at = |q| percentile(&sorted, q);
    assert_eq!([at(0.0), at(0.5), at(0.99), at(1.0)], [Some(1.0), Some(50.0), Some(99.0), Some(100.0)]);
    assert_eq!(percentile(&[], 0.5), None);
    assert_eq!([jain(&[1.0, 1.0, 1.0]), jain(&[1.0, 0.0, 0.0, 0.0])], [Some(1.0), Some(0.25)]);
}

#[test]
fn a_flow_without_an_end_counts_with_the_time_it_had() {
    let s = run(1, &[Some(110.0), Some(130.0), None]).summary;
    assert_eq!((s.flows, s.unfinished, s.max_over_ideal, s.max_fct_us), (3, 1, Some(4.0), Some(130.0)));
    assert_eq!(s.duration_us, 130.0);
    // However little that was.
    assert_eq!([Flow::over(100.0, None, 13.0), Flow::over(100.0, None, 400.0)], [1.0, 4.0]);
    assert_eq!(Flow::over(100.0, Some(99.0), 0.0), 0.99);
    let report = Report::of("s", "t", Vec::new(), vec![run(1, &[Some(110.0), None])]);
    assert!(table(&report).contains(" >4.000 "), "{}", table(&report));
    assert!(table(&report).contains(" >110.0 "), "{}", table(&report));
    // The middle one of three has not finished, the smallest has.
    let report = Report::of("s", "t", Vec::new(), vec![run(1, &[Some(110.0), None, Some(500.0)])]);
    let row = table(&report).lines().find(|l| l.starts_with(" srd ")).expect("a row").to_owned();
    let figures: Vec<&str> = row.split_whitespace().skip(4).take(4).collect();
    assert_eq!(figures, ["1.100", ">4.000", ">5.000", ">5.000"], "{row}");
}

#[test]
fn no_ideal_is_shown_where_there_is_none() {
    let mut endless = run(1, &[None]);
    let shown = |run: &Run| table(&Report::of("s", "t", Vec::new(), vec![run.clone()]));
    assert!(shown(&endless).contains("ideal completion time 100.0 us"));
    endless.ideal_fct_us = 0.0;
    assert!(!shown(&endless).contains("ideal"), "{}", shown(&endless));
}

/// The curve of a run ends where flows did not.
#[test]
fn flows_that_did_not_finish_are_missing_from_the_distribution() {
    let at = |times: &[Option<f64>]| plot::distribution(&run(1, times)).last().copied();
    assert_eq!(at(&[Some(110.0), Some(130.0)]), Some((130.0, 1.0)));
    assert_eq!(at(&[Some(110.0), None, Some(130.0), None]), Some((130.0, 0.5)));
    assert_eq!(at(&[None]), None);
}

#[test]
fn values_of_a_sweep_are_put_where_they_belong() {
    let at = |text: &str| plot::leading_number(text).map(|(x, of)| (x, of(x)));
    for (text, x, shown) in [
        ("8", 8.0, "8"),
        ("64KB", 64e3, "64 KB"),
        ("64KiB", 65_536.0, "65.54 KB"),
        ("\"64KB\"", 64e3, "64 KB"),
        ("500us", 5e-4, "500 us"),
        ("1.5 ms", 1.5e-3, "1.5 ms"),
        ("2s", 2.0, "2 s"),
        ("400Mbps", 4e8, "400 Mbit/s"),
        ("100g", 1e11, "100 Gbit/s"),
        ("0us", 0.0, "0 ns"),
    ] {
        let (found, text_of) = at(text).unwrap_or_else(|| panic!("{text}"));
        assert!((found / x - 1.0).abs() < 1e-12 || found == x, "{text}: {found}");
        assert_eq!(text_of, shown, "{text}");
    }
    assert!(at("true").is_none());
}

#[test]
fn a_sweep_shows_no_largest_time_of_flows_that_did_not_finish() {
    let mut report = Report::of("s", "t", Vec::new(), vec![run(1, &[Some(110.0), None])]);
    let point = |value: &str, times: &[Option<f64>]| Point {
        parameter: "size".into(),
        value: value.into(),
        transport: "srd".into(),
        seed: 1,
        ideal_fct_us: 100.0,
        summary: run(1, times).summary,
    };
    let whole = [Some(110.0), Some(120.0)];
    report.sweep = vec![point("1", &whole), point("2", &[Some(110.0), None]), point("3", &whole)];
    let marks = |report: &Report| {
        let picture = plots(report).into_iter().find(|p| p.name == "sweep").expect("a sweep");
        picture.svg.matches("<circle").count()
    };
    assert_eq!(marks(&report), 2);
    // One of which none finished leaves the others where they are.
    report.sweep[1].summary.max_fct_us = None;
    assert_eq!(marks(&report), 2);
    // Zero has no place on a logarithmic axis.
    report.sweep = vec![point("0", &whole), point("1", &whole), point("100", &whole)];
    assert_eq!(marks(&report), 3);
}

#[test]
fn background_is_left_out() {
    let mut flows = vec![flow(0, Some(110.0)), flow(1, Some(900.0))];
    flows[1].background = true;
    let s = Summary::of_flows(&flows, None);
    assert_eq!((s.flows, s.max_over_ideal), (1, Some(1.1)));
}

#[test]
fn the_worst_seed_counts() {
    let runs = vec![run(1, &[Some(110.0)]), run(2, &[Some(150.0)]), run(3, &[Some(120.0)])];
    let report = Report::of("s", "t", Vec::new(), runs);
    assert_eq!((report.run.seed, report.seeds.len()), (2, 3));
    let spread = report.confidence.as_ref().and_then(|c| c.max_over_ideal).expect("three seeds");
    assert_eq!((spread.best, spread.worst), (1.1, 1.5));
    // Mean 1.2667, standard deviation 0.20817, t 4.303.
    assert!((spread.plus_minus - 0.5172).abs() < 1e-3, "{spread:?}");
    // Beyond the table: t is 2.0395 for 31 degrees of freedom, 1.9842 for 99. The standard deviation of 0 and 1 is about 1/2.
    for (n, t) in [(32, 2.0395), (100, 1.9842)] {
        let values: Vec<f64> = (0..n).map(|k| f64::from(k % 2)).collect();
        let spread = Spread::of(&values).expect("many");
        let expected = t * 0.5 / f64::from(n - 1).sqrt();
        assert!((spread.plus_minus / expected - 1.0).abs() < 1e-3, "{spread:?}, not {expected}");
    }
}

#[test]
fn worst_sample_ignores_the_first_and_flows_that_come_or_go() {
    let interval_us = 10.0;
    let samples = Samples { interval_us, gbps: vec![vec![9.0, 2.0, 2.0], vec![0.0, 2.0, 1.0], vec![0.0, 0.0, 0.1]] };
    let late = Flow { start_us: 25.0, ..flow(2, None) };
    let flows = vec![flow(0, None), flow(1, None), late];
    let s = Summary::of_flows(&flows, Some(&samples));
    let worst = s.worst_sample_over_fair.expect("two samples count");
    assert!((worst - 4.0 / 3.0).abs() < 1e-9 || (worst - 2.0 / 3.0).abs() < 1e-9, "{worst}");
}

#[test]
fn nothing_delivered_is_not_fair() {
    let endless = |gbps: [f64; 2]| {
        let flow = |(n, goodput_gbps)| Flow { bytes: None, over_ideal: None, goodput_gbps, ..flow(n, None) };
        let flows: Vec<_> = gbps.into_iter().enumerate().map(flow).collect();
        let samples = Samples { interval_us: 10.0, gbps: gbps.map(|rate| vec![rate; 3]).to_vec() };
        let summary = Summary::of_flows(&flows, Some(&samples));
        Run { transport: "srd".into(), summary, flows, ..Run::default() }
    };
    let report = Report::of("s", "t", Vec::new(), vec![endless([1.0, 2.0]), endless([0.0, 0.0]), endless([2.0, 2.0])]);
    let summary = serde_json::to_value(report.run.summary).expect("JSON");
    assert_eq!(summary["jain"], serde_json::Value::Null, "the worst of them: {summary}");
    assert_eq!(summary["worst_sample_over_fair"], serde_json::Value::Null);
    let text = table(&report);
    assert!(!text.contains("furthest from the fair share") && !text.contains("NaN"), "{text}");
}

#[test]
fn renderings_are_complete_and_repeatable() {
    let mut run = run(1, &[Some(110.0), Some(130.0)]);
    run.links = vec![Link { link: "leaf0->h<0>".into(), packets: 3, buffer: u64::MAX, ..Link::default() }];
    run.samples = Some(Samples { interval_us: 10.0, gbps: vec![vec![1.0, 2.0], vec![2.0, 1.0]] });
    let mut report = Report::of("incast", "two flows", vec!["nothing".into()], vec![run]);
    let point = |value: &str| Point {
        parameter: "size".into(),
        value: value.into(),
        transport: "srd".into(),
        seed: 1,
        ideal_fct_us: 100.0,
        summary: report.run.summary,
    };
    report.sweep = vec![point("64KB"), point("1MB")];
    report.sweep_value = Some("size=1MB".into());
    report.changed = vec!["limit=2s".into()];
    let pictures = plots(&report);
    for picture in &pictures {
        let shown = if picture.name == "sweep" { "changed: limit=2s" } else { "changed: limit=2s, size=1MB" };
        assert!(picture.svg.lines().any(|l| l.trim() == shown), "{}: {}", picture.name, picture.svg);
    }
    assert_eq!(pictures.iter().map(|p| p.name).collect::<Vec<_>>(), ["fct-cdf", "sweep", "throughput"]);
    for picture in &pictures {
        assert!(PLOT_NAMES.contains(&picture.name));
        let png = png(picture).expect("a picture");
        assert!(png.starts_with(b"\x89PNG") && png.len() > 5_000, "{} has {} bytes", picture.name, png.len());
    }
    let page = html(&report, &pictures);
    assert!(page.contains("leaf0-&gt;h&lt;0&gt;") && page.contains("data:text/csv,") && !page.contains("http-equiv"));
    assert_eq!(page, html(&report, &plots(&report)));
    assert_eq!(flows_csv(&report).lines().count(), 3);
    report.others = vec![("size=64KB".into(), vec![report.run.clone()])];
    let values =
        |csv: &str| csv.lines().map(|l| l.rsplit(',').next().unwrap_or_default().to_owned()).collect::<Vec<_>>();
    assert_eq!(values(&links_csv(&report)), ["sweep", "size=64KB", "size=1MB"]);
    assert_eq!(values(&flows_csv(&report)), ["sweep", "size=64KB", "size=64KB", "size=1MB", "size=1MB"]);
    assert_eq!(
        samples_csv(&report).map(|csv| values(&csv)[3..6].join(" ")),
        Some("size=64KB size=64KB size=1MB".into())
    );
    report.others.clear();
    assert_eq!(links_csv(&report).lines().count(), 2);
    assert_eq!(samples_csv(&report).expect("sampled").lines().count(), 5);
    let text = table(&report);
    assert!(text.contains("assumed: nothing") && text.contains("1.300"), "{text}");
    assert!(text.contains("  changed: limit=2s\n  changed: size=1MB, the last of the sweep\n"), "{text}");
    assert!(page.contains("  changed: limit=2s\n"));
    let json = serde_json::to_value(&report).expect("JSON");
    for name in ["scenario", "seed", "ideal_fct_us", "summary", "flows", "links", "wall_s", "events_per_s"] {
        assert!(!json[name].is_null(), "{name}");
    }
}
