//! Counts or levels over time: a line for each thing counted, and bands for what lasted a while.

use plotters::chart::ChartBuilder;
use plotters::element::{PathElement, Rectangle, Text};
use plotters::series::LineSeries;
use plotters::style::{Color as _, RGBColor, WHITE};

use super::{Color, FONT, TEXT, legend, svg};

/// A chart over time.
#[derive(Clone, Debug)]
pub struct Timeline {
    /// What the vertical axis counts, such as `responses a second`.
    pub counts: String,
    pub lines: Vec<Line>,
    pub bands: Vec<Band>,
}

/// One thing that is counted; its points are of seconds and counts, in order.
#[derive(Clone, Debug)]
pub struct Line {
    pub name: String,
    pub color: Color,
    pub points: Vec<(f64, f64)>,
}

/// Something that lasted from one second to another.
#[derive(Clone, Debug)]
pub struct Band {
    pub name: String,
    pub color: Color,
    pub from: f64,
    pub to: f64,
}

impl Timeline {
    pub fn svg(&self) -> String {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let end = points().map(|(t, _)| *t).chain(self.bands.iter().map(|band| band.to)).fold(1.0, f64::max);
        let top = points().map(|(_, count)| *count).fold(1.0, f64::max) * 1.1;
        svg(|area| {
            let mut chart = ChartBuilder::on(area)
                .margin(12)
                .x_label_area_size(36)
                .y_label_area_size(60)
                .build_cartesian_2d(0.0..end, 0.0..top)?;
            chart
                .configure_mesh()
                .light_line_style(WHITE)
                .bold_line_style(RGBColor(225, 225, 225))
                .label_style((FONT, TEXT))
                .x_desc("seconds")
                .y_desc(&self.counts)
                .x_label_formatter(&|t| format!("{t:.0}"))
                .y_label_formatter(&|count| format!("{count:.0}"))
                .draw()?;
            for band in &self.bands {
                let corners = [(band.from, 0.0), (band.to, top)];
                chart.draw_series([Rectangle::new(corners, band.color.rgb().mix(0.15).filled())])?;
                let at = (band.from, top * 0.98);
                chart.draw_series([Text::new(band.name.clone(), at, (FONT, TEXT))])?;
            }
            for line in &self.lines {
                let style = line.color.rgb().stroke_width(2);
                chart
                    .draw_series(LineSeries::new(line.points.iter().copied(), style))?
                    .label(line.name.clone())
                    .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
            }
            legend(&mut chart)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_and_band_is_drawn_with_its_name() {
        let line = |name: &str, color| Line { name: name.to_owned(), color, points: vec![(0.0, 5.0), (1.0, 50.0)] };
        let svg = Timeline {
            counts: "responses a second".to_owned(),
            lines: vec![line("complete", Color::Blue), line("<504>", Color::Vermilion)],
            bands: vec![Band { name: "ejected".to_owned(), color: Color::Grey, from: 0.2, to: 0.7 }],
        }
        .svg();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
        for part in ["complete", "&lt;504&gt;", "ejected", "responses a second", "#0072B2", "#D55E00"] {
            assert!(svg.contains(part), "{part} is missing: {svg}");
        }
    }

    #[test]
    fn a_chart_of_nothing_is_still_a_chart() {
        let svg = Timeline { counts: "responses".to_owned(), lines: Vec::new(), bands: Vec::new() }.svg();
        assert!(svg.contains("</svg>"), "{svg}");
    }
}
