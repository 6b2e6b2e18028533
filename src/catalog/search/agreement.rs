//! What a question wants done, compared with what a tool does.

use super::segment::Traits;
use super::thesaurus::Effect;

/// How much of a score is left to a tool that does something else than the question wants.
pub(super) fn agreement(wanted: Option<Effect>, traits: &Traits) -> f32 {
    match (wanted, traits.effect) {
        (_, None) => 0.9,
        (None, Some(Effect::Destroy)) => 0.5,
        (None, Some(Effect::Read | Effect::Write)) => 1.0,
        (Some(Effect::Read), Some(Effect::Read)) => 1.0,
        (Some(Effect::Read), Some(Effect::Write)) => 0.75,
        (Some(Effect::Read | Effect::Write), Some(Effect::Destroy)) => 0.3,
        (Some(Effect::Write), Some(Effect::Write)) => 1.0,
        (Some(Effect::Write), Some(Effect::Read)) => 0.7,
        (Some(Effect::Destroy), Some(Effect::Destroy)) => 1.0,
        (Some(Effect::Destroy), Some(Effect::Write)) => 0.7,
        (Some(Effect::Destroy), Some(Effect::Read)) => 0.5,
    }
}

pub(super) fn destroys(traits: &Traits) -> bool {
    traits.destroys || traits.effect == Some(Effect::Destroy)
}

/// Whether a tool destroys, and the question only wants to see.
pub(super) fn is_unwanted(effect: Option<Effect>, traits: &Traits) -> bool {
    matches!(effect, None | Some(Effect::Read)) && destroys(traits)
}
