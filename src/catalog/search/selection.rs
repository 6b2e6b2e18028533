//! Which of the tools that were found are the answer, and in which order.

use std::collections::BinaryHeap;

use super::found_tool::FoundTool;
use super::thesaurus::Effect;

/// What a tool's score is at least, beside the best one's.
const LEAST_SHARE: f32 = 0.15;

/// Of the tools that are `shown` the best, and what is not much worse; none where they have too little of the question, or
/// somebody only wants to see and all of them destroy. The best is asked about first, so that what is hidden decides
/// nothing, and what is weak only where it would decide: it may be what is wanted.
pub(super) fn strong_enough<'a>(
    tools: Vec<FoundTool<'a>>,
    effect: Option<Effect>,
    mut shown: impl FnMut(usize) -> bool,
) -> Vec<FoundTool<'a>> {
    let (mut covers, mut allowed, mut least) = (false, false, 0.0);
    let mut found: Vec<FoundTool<'a>> = Vec::new();
    if !tools.iter().any(FoundTool::covers) {
        return found;
    }
    let mut tools = BinaryHeap::from(tools);
    while let Some(tool) = tools.pop() {
        let weak = tool.by_words < least && !tool.is_named();
        if weak && covers && allowed {
            break;
        }
        let (is_covering, is_allowed) = (tool.covers(), !tool.is_forbidden(effect));
        let decides = (is_covering && !covers) || (is_allowed && !allowed);
        if (weak && !decides) || !shown(tool.at) {
            continue;
        }
        covers |= is_covering;
        allowed |= is_allowed;
        // One that is called like the query comes before what has more of its words.
        least = least.max(tool.by_words * LEAST_SHARE);
        if !weak {
            found.push(tool);
        }
    }
    match covers && allowed {
        true => found,
        false => Vec::new(),
    }
}

/// Best first, what is deprecated last, and first none that is unwanted there, if there is another. Who names a tool wants
/// it.
pub(super) fn in_order<'a>(
    mut found: Vec<FoundTool<'a>>,
    unwanted: impl Fn(&FoundTool<'a>) -> bool,
) -> Vec<FoundTool<'a>> {
    let last = |tool: &FoundTool<'_>| !tool.is_named() && tool.traits.deprecated;
    found.sort_by(|a, b| {
        last(a).cmp(&last(b)).then(b.score.total_cmp(&a.score)).then(a.at.cmp(&b.at))
    });
    let unwanted = |tool: &FoundTool<'a>| !tool.is_named() && unwanted(tool);
    if found.first().is_some_and(unwanted)
        && let Some(other) = found.iter().position(|tool| !unwanted(tool))
        && let Some(first) = found.get_mut(..=other)
    {
        first.rotate_right(1);
    }
    found
}

/// Positions and scores that fall, also where a tool is put last for what it does.
pub(super) fn in_falling_order(found: Vec<FoundTool<'_>>) -> impl Iterator<Item = (usize, f32)> {
    let mut lowest = f32::MAX;
    found.into_iter().map(move |tool| {
        lowest = lowest.min(tool.score);
        (tool.at, lowest)
    })
}
