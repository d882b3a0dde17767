//! A distribution: how many were within each range, stacked by what they were.

use plotters::chart::ChartBuilder;
use plotters::element::Rectangle;
use plotters::style::{Color as _, RGBColor, WHITE};

use super::{Color, FONT, TEXT, legend, svg};

/// A chart of ranges side by side.
#[derive(Clone, Debug)]
pub struct Bars {
    /// What the horizontal axis is of, such as `latency in ms`.
    pub of: String,
    /// What the vertical axis counts.
    pub counts: String,
    /// What each bar is made of, from the bottom up.
    pub layers: Vec<(String, Color)>,
    pub bars: Vec<Bar>,
}

/// One range, and how many were in it of each layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Bar {
    pub label: String,
    pub counts: Vec<f64>,
}

impl Bars {
    pub fn svg(&self) -> String {
        let top = self.bars.iter().map(|bar| bar.counts.iter().sum()).fold(1.0, f64::max) * 1.1;
        let label = |x: &f64| {
            let at = x.floor();
            let bar = if at < 0.0 { None } else { self.bars.get(at as usize) };
            bar.map(|bar| bar.label.clone()).unwrap_or_default()
        };
        svg(|area| {
            let mut chart = ChartBuilder::on(area)
                .margin(12)
                .x_label_area_size(36)
                .y_label_area_size(60)
                .build_cartesian_2d(0.0..self.bars.len().max(1) as f64, 0.0..top)?;
            chart
                .configure_mesh()
                .disable_x_mesh()
                .light_line_style(WHITE)
                .bold_line_style(RGBColor(225, 225, 225))
                .label_style((FONT, TEXT))
                .x_desc(&self.of)
                .y_desc(&self.counts)
                .x_labels((self.bars.len() + 1).min(13))
                .x_label_formatter(&label)
                .y_label_formatter(&|count| format!("{count:.0}"))
                .draw()?;
            let mut bases = vec![0.0; self.bars.len()];
            for (layer, (name, color)) in self.layers.iter().enumerate() {
                let color = color.rgb();
                let boxes = self.bars.iter().zip(&mut bases).zip(0..).map(|((bar, base), place)| {
                    let (from, count) = (*base, bar.counts.get(layer).copied().unwrap_or_default());
                    *base += count;
                    let x = f64::from(place);
                    Rectangle::new([(x + 0.08, from), (x + 0.92, *base)], color.filled())
                });
                chart
                    .draw_series(boxes)?
                    .label(name.clone())
                    .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 12, y + 5)], color.filled()));
            }
            legend(&mut chart)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_layer_of_every_bar_is_drawn() {
        let svg = Bars {
            of: "latency in ms".to_owned(),
            counts: "answers".to_owned(),
            layers: vec![("complete".to_owned(), Color::Blue), ("failed".to_owned(), Color::Vermilion)],
            bars: vec![
                Bar { label: "0–10".to_owned(), counts: vec![3.0, 1.0] },
                Bar { label: "10–20".to_owned(), counts: vec![5.0, 2.0] },
            ],
        }
        .svg();
        for (color, boxes) in [("#0072B2", 3), ("#D55E00", 3)] {
            // Two bars and one in the legend.
            assert_eq!(svg.matches(&format!("fill=\"{color}\"")).count(), boxes, "{svg}");
        }
        for part in ["complete", "failed", "latency in ms", "answers", "0–10", "10–20"] {
            assert!(svg.contains(part), "{part} is missing: {svg}");
        }
    }
}
