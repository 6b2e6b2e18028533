//! What the scan says: rule, level, place.

use std::fmt;

use serde::Serialize;
use utoipa::ToSchema;

/// A rule of the scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ScanRule {
    /// Characters that nobody sees.
    HiddenCharacters,
    /// Letters of several scripts in one name.
    MixedScripts,
    /// A name that looks like another.
    ConfusableName,
    /// An order to the model.
    Order,
    /// A text that names another server's tool.
    OtherTool,
    /// It was not scanned.
    TooLarge,
}

impl ScanRule {
    /// Its id.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::HiddenCharacters => "hidden-characters",
            Self::MixedScripts => "mixed-scripts",
            Self::ConfusableName => "confusable-name",
            Self::Order => "order",
            Self::OtherTool => "other-tool",
            Self::TooLarge => "too-large",
        }
    }
}

/// How suspect it is; the later ones are more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum FindingLevel {
    /// Often harmless: only told.
    Low,
    /// Seldom harmless.
    Medium,
    /// Hardly ever by accident.
    High,
}

impl FindingLevel {
    /// Its name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
        }
    }
}

/// Something suspect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct ScanFinding {
    /// By which rule.
    pub rule: ScanRule,
    /// How suspect.
    pub level: FindingLevel,
    /// Where in the definition: members and names, with `/` between them.
    pub place: String,
    /// What it is.
    pub detail: String,
}

impl fmt::Display for ScanFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rule, level, place, detail } = self;
        write!(f, "{} ({}) in {place}: {detail}", rule.as_str(), level.as_str())
    }
}
