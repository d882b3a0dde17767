//! Charts as SVG, and the page around them, for a person who looks at a report. Knows nothing of what it draws.

mod bars;
mod page;
mod timeline;

use plotters::backend::SVGBackend;
use plotters::chart::{ChartContext, SeriesLabelPosition};
use plotters::coord::{CoordTranslate, Shift};
use plotters::drawing::{DrawingArea, DrawingAreaErrorKind, IntoDrawingArea as _};
use plotters::style::{BLACK, Color as _, RGBColor, WHITE};

pub use bars::{Bar, Bars};
pub use page::page;
pub use timeline::{Band, Line, Timeline};

/// Colours of what is drawn, told apart also by those who do not see red and green.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Color {
    Blue,
    Orange,
    Vermilion,
    Purple,
    Green,
    Grey,
}

impl Color {
    /// For things that have no colour of their own, in turn.
    pub const OTHERS: [Color; 4] = [Color::Vermilion, Color::Purple, Color::Orange, Color::Grey];

    fn rgb(self) -> RGBColor {
        match self {
            Color::Blue => RGBColor(0, 114, 178),
            Color::Orange => RGBColor(230, 159, 0),
            Color::Vermilion => RGBColor(213, 94, 0),
            Color::Purple => RGBColor(136, 84, 152),
            Color::Green => RGBColor(0, 128, 96),
            Color::Grey => RGBColor(110, 110, 110),
        }
    }
}

const SIZE: (u32, u32) = (960, 320);
const FONT: &str = "sans-serif";
const TEXT: u32 = 13;

type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;

/// What each colour stands for, in a box at the upper right.
fn legend<'a, 'text: 'a, C: CoordTranslate>(chart: &mut ChartContext<'a, SVGBackend<'text>, C>) -> Drawn {
    let mut labels = chart.configure_series_labels();
    labels.position(SeriesLabelPosition::UpperRight).background_style(WHITE.mix(0.8)).border_style(BLACK.mix(0.2));
    labels.label_font((FONT, TEXT)).draw()
}

/// The SVG that `draw` makes.
fn svg(draw: impl FnOnce(&DrawingArea<SVGBackend<'_>, Shift>) -> Drawn) -> String {
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        // It writes to memory.
        area.fill(&WHITE).and_then(|()| draw(&area)).and_then(|()| area.present()).expect("a string takes all");
    }
    text
}
