//! Two pictures of a run in one SVG file: latency by percentile, and throughput over time.
//!
//! The horizontal axis of the first is logarithmic in `1 / (1 - percentile)`, as in HdrHistogram's plots: each nine has the
//! same width, so that the tail is not hidden in the last pixel. Its vertical axis is logarithmic as well.

use std::fmt::Write as _;
use std::io;
use std::path::Path;

use crate::drive::Sample;
use crate::report::Report;
use crate::stats::{Count, Latencies};

const WIDTH: f64 = 900.0;
const PANEL_HEIGHT: f64 = 320.0;
const LEFT: f64 = 90.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 40.0;
const COLOURS: [&str; 2] = ["#1f6feb", "#d1582b"];
/// Points of a curve of latencies.
const POINTS: u32 = 400;

/// A curve with a name.
struct Curve {
    name: &'static str,
    points: Vec<(f64, f64)>,
}

/// An axis from `low` to `high`, with marks.
struct Axis {
    low: f64,
    high: f64,
    marks: Vec<(f64, String)>,
}

impl Axis {
    fn part(&self, value: f64) -> f64 {
        ((value - self.low) / (self.high - self.low).max(f64::MIN_POSITIVE)).clamp(0.0, 1.0)
    }

    /// From 0 to `high`, with about five round marks.
    fn linear(high: f64) -> Self {
        let high = high.max(1e-9);
        let power = 10_f64.powf((high / 5.0).log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0]
            .into_iter()
            .map(|part| part * power)
            .find(|step| high / step <= 6.0)
            .unwrap_or(power);
        let marks = (0..=10)
            .map(|mark| f64::from(mark) * step)
            .take_while(|mark| *mark <= high);
        Self {
            low: 0.0,
            high,
            marks: marks.map(|mark| (mark, shown(mark))).collect(),
        }
    }

    /// Whole powers of ten around the values, which are logarithms.
    fn powers(values: impl Iterator<Item = f64> + Clone) -> Self {
        let low = values.clone().fold(f64::INFINITY, f64::min).floor();
        let high = values
            .fold(f64::NEG_INFINITY, f64::max)
            .ceil()
            .max(low + 1.0);
        let marks = (-3..=10)
            .map(f64::from)
            .filter(|mark| (low..=high).contains(mark));
        Self {
            low,
            high,
            marks: marks.map(|mark| (mark, shown(10_f64.powf(mark)))).collect(),
        }
    }
}

/// Writes the picture of a report.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn draw(path: &Path, report: &Report) -> io::Result<()> {
    std::fs::write(path, picture(report))
}

fn picture(report: &Report) -> String {
    let latencies = [
        ("to acknowledgement", &report.ack),
        ("to arrival", &report.arrival),
    ];
    let latencies: Vec<Curve> = latencies
        .into_iter()
        .filter(|(_, latencies)| !latencies.is_empty())
        .map(|(name, latencies)| Curve {
            name,
            points: by_percentile(latencies),
        })
        .collect();
    let rates: Vec<Curve> = [
        (
            "stored",
            over_time(&report.samples, |sample| sample.produced),
        ),
        ("read", over_time(&report.samples, |sample| sample.consumed)),
    ]
    .into_iter()
    .filter(|(_, points)| points.iter().any(|(_, rate)| *rate > 0.0))
    .map(|(name, points)| Curve { name, points })
    .collect();
    let mut panels = String::new();
    let mut height = 0.0;
    if !latencies.is_empty() {
        let nines = latencies
            .iter()
            .flat_map(|curve| &curve.points)
            .map(|point| point.0)
            .fold(1.0, f64::max);
        let marks = [
            (0.0, "0%"),
            (1.0, "90%"),
            (2.0, "99%"),
            (3.0, "99.9%"),
            (4.0, "99.99%"),
            (5.0, "99.999%"),
            (6.0, "99.9999%"),
        ];
        let marks = marks
            .into_iter()
            .filter(|(mark, _)| *mark <= nines)
            .map(|(mark, text)| (mark, text.to_owned()));
        let across = Axis {
            low: 0.0,
            high: nines,
            marks: marks.collect(),
        };
        let up = Axis::powers(
            latencies
                .iter()
                .flat_map(|curve| &curve.points)
                .map(|point| point.1),
        );
        panel(
            &mut panels,
            height,
            "Latency by percentile, in microseconds",
            &across,
            &up,
            &latencies,
        );
        height += PANEL_HEIGHT;
    }
    if !rates.is_empty() {
        let points = || rates.iter().flat_map(|curve| &curve.points);
        let across = Axis::linear(points().map(|point| point.0).fold(0.0, f64::max));
        let up = Axis::linear(points().map(|point| point.1).fold(0.0, f64::max) * 1.05);
        panel(
            &mut panels,
            height,
            "Records per second, by second since the start",
            &across,
            &up,
            &rates,
        );
        height += PANEL_HEIGHT;
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"white\"/>\n{panels}</svg>\n"
    )
}

/// Points (nines, log10 of microseconds).
fn by_percentile(latencies: &Latencies) -> Vec<(f64, f64)> {
    let count = latencies.summary().map_or(1, |summary| summary.count);
    // The last point is the largest of all: the one in `count`.
    let most = (count.max(10) as f64).log10().min(7.0);
    let points = (0..=POINTS).map(|point| most * f64::from(point) / f64::from(POINTS));
    points
        .map(|nines| {
            (
                nines,
                latencies
                    .quantile_us(1.0 - 10_f64.powf(-nines))
                    .max(0.1)
                    .log10(),
            )
        })
        .collect()
}

/// Points (seconds, records per second) between two samples each.
fn over_time(samples: &[Sample], count: impl Fn(&Sample) -> Count) -> Vec<(f64, f64)> {
    let rate = |pair: &[Sample]| {
        let seconds = pair[1].at_ns.saturating_sub(pair[0].at_ns) as f64 / 1e9;
        let records = count(&pair[1]).since(count(&pair[0])).records as f64;
        // The last sample comes when it is all over, maybe right after the one before.
        (seconds > 0.05).then(|| (pair[1].at_ns as f64 / 1e9, records / seconds))
    };
    samples.windows(2).filter_map(rate).collect()
}

fn panel(out: &mut String, top: f64, title: &str, across: &Axis, up: &Axis, curves: &[Curve]) {
    let x = |value: f64| LEFT + across.part(value) * (WIDTH - LEFT - RIGHT);
    let y =
        |value: f64| top + PANEL_HEIGHT - BOTTOM - up.part(value) * (PANEL_HEIGHT - TOP - BOTTOM);
    let (bottom, ceiling) = (y(up.low), y(up.high));
    let mut put = |text: std::fmt::Arguments<'_>| {
        // A string takes all that is written to it.
        let _ = writeln!(out, "{text}");
    };
    put(format_args!(
        "<text x=\"{LEFT}\" y=\"{}\" font-size=\"14\">{title}</text>",
        top + 20.0
    ));
    for (value, text) in &across.marks {
        let x = x(*value);
        put(format_args!(
            "<path d=\"M{x:.1} {bottom:.1}V{ceiling:.1}\" stroke=\"#ddd\"/>"
        ));
        put(format_args!(
            "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{text}</text>",
            bottom + 18.0
        ));
    }
    for (value, text) in &up.marks {
        let y = y(*value);
        put(format_args!(
            "<path d=\"M{LEFT} {y:.1}H{:.1}\" stroke=\"#ddd\"/>",
            WIDTH - RIGHT
        ));
        put(format_args!(
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{text}</text>",
            LEFT - 8.0,
            y + 4.0
        ));
    }
    for (number, (curve, colour)) in curves.iter().zip(COLOURS).enumerate() {
        let points = curve
            .points
            .iter()
            .map(|(across, up)| format!("{:.1},{:.1}", x(*across), y(*up)));
        let points = points.collect::<Vec<_>>().join(" ");
        put(format_args!(
            "<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"/>"
        ));
        let (at, beside) = (WIDTH - RIGHT - 140.0 * (number + 1) as f64, top + 20.0);
        put(format_args!(
            "<text x=\"{at:.1}\" y=\"{beside:.1}\" fill=\"{colour}\">{}</text>",
            curve.name
        ));
    }
}

/// A number as short as a mark wants it.
fn shown(value: f64) -> String {
    let (value, unit) = match value {
        value if value >= 1e9 => (value / 1e9, " G"),
        value if value >= 1e6 => (value / 1e6, " M"),
        value if value >= 1e4 => (value / 1e3, " k"),
        value => (value, ""),
    };
    let text = format!("{value:.3}");
    format!("{}{unit}", text.trim_end_matches('0').trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_nine_has_the_same_width_and_the_end_is_the_largest() {
        let mut latencies = Latencies::default();
        for latency_us in 1..=10_000_u64 {
            latencies.record(latency_us * 1_000, 1);
        }
        let points = by_percentile(&latencies);
        let at = |nines: f64| {
            points
                .iter()
                .find(|point| point.0 >= nines - 1e-9)
                .unwrap()
                .1
        };
        for (nines, expected_us) in [
            (1.0, 9_000.0),
            (2.0, 9_900.0),
            (3.0, 9_990.0),
            (4.0, 10_000.0),
        ] {
            assert!(
                (at(nines) - f64::log10(expected_us)).abs() < 0.001,
                "{nines}"
            );
        }
    }

    #[test]
    fn marks_are_round_and_few() {
        let axis = Axis::linear(9_300_000.0);
        let texts: Vec<_> = axis.marks.iter().map(|(_, text)| text.as_str()).collect();
        assert_eq!(texts, ["0", "2 M", "4 M", "6 M", "8 M"]);
        let axis = Axis::powers([1.2, 2.7].into_iter());
        let texts: Vec<_> = axis.marks.iter().map(|(_, text)| text.as_str()).collect();
        assert_eq!(texts, ["10", "100", "1000"]);
    }
}
