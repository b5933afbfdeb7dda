//! What a row says, for people and for machines.

use std::fmt::Write as _;

/// One measured figure beside its floor.
pub(crate) struct Row {
    /// `B4`, or `B4.<variant>`.
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) value: f64,
    pub(crate) unit: &'static str,
    /// The same work at its barest, in the same unit and the same run; none when the figure stands
    /// by itself.
    pub(crate) floor: Option<f64>,
    /// The figure that is held against `reach`: value by floor, or the value.
    pub(crate) ratio: f64,
    pub(crate) reach: Reach,
}

/// What the ratio has to be.
#[derive(Clone, Copy)]
pub(crate) enum Reach {
    AtMost(f64),
    /// At least the first and never more than the second.
    Within(f64, f64),
}

impl Reach {
    fn holds(self, ratio: f64) -> bool {
        match self {
            Self::AtMost(most) => ratio <= most,
            Self::Within(least, most) => (least..=most).contains(&ratio),
        }
    }
}

impl Row {
    /// A figure whose ratio to its floor counts.
    pub(crate) fn against(
        id: impl Into<String>,
        name: impl Into<String>,
        unit: &'static str,
        value: f64,
        floor: f64,
        most: f64,
    ) -> Self {
        Self {
            id: id.into(),
            name: name.into(),
            value,
            unit,
            floor: Some(floor),
            ratio: value / floor,
            reach: Reach::AtMost(most),
        }
    }

    /// A figure that counts by itself.
    pub(crate) fn alone(
        id: impl Into<String>,
        name: impl Into<String>,
        unit: &'static str,
        value: f64,
        reach: Reach,
    ) -> Self {
        Self {
            id: id.into(),
            name: name.into(),
            value,
            unit,
            floor: None,
            ratio: value,
            reach,
        }
    }

    pub(crate) fn ok(&self) -> bool {
        self.reach.holds(self.ratio)
    }

    pub(crate) fn json(&self) -> String {
        let floor = self.floor.map_or("null".to_owned(), number);
        let reach = match self.reach {
            Reach::AtMost(most) => number(most),
            Reach::Within(least, most) => format!("[{},{}]", number(least), number(most)),
        };
        format!(
            r#"{{"id":"{}","name":"{}","value":{},"unit":"{}","floor":{floor},"ratio":{},"reach":{reach},"ok":{}}}"#,
            self.id,
            self.name,
            number(self.value),
            self.unit,
            number(self.ratio),
            self.ok()
        )
    }

    pub(crate) fn line(&self) -> String {
        let mut line = format!(
            "{:<12} {:<58} {:>10.3} {:<4}",
            self.id, self.name, self.value, self.unit
        );
        match self.floor {
            Some(floor) => {
                let _ = write!(line, " floor {floor:>9.3}  ratio {:>7.3}", self.ratio);
            }
            None => line.push_str(&" ".repeat(32)),
        }
        let _ = match self.reach {
            Reach::AtMost(most) => write!(line, "  <= {most:<5}"),
            Reach::Within(least, most) => write!(line, "  {least} to {most}"),
        };
        line.push_str(if self.ok() { "  ok" } else { "  NOT REACHED" });
        line
    }
}

fn number(value: f64) -> String {
    if value.is_finite() {
        format!("{value:.4}")
    } else {
        "null".to_owned()
    }
}

/// The middle of several measurements.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
