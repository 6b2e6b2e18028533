//! The fleet's word about definitions, put to work: what becomes of a tool that is taken up, and of those that are listed when
//! others say something new. What counts is `shared_pins`'.

use std::sync::Arc;

use super::Catalog;
use super::definition::DefinitionDigest;
use super::on_change::ChangeAction;
use super::pins::{AcceptedDefinition, Judge, Pin, PinEvent, PinHistory, Sighted, compared};
use super::replacing::assembled;
use super::shared_pins::{SharedPins, SharedVerdict, is_known};
use super::snapshot::{DirectTool, Snapshot};
use super::{grade, pins};
use crate::tool::{ToolName, Trust};

impl Judge<'_> {
    /// What becomes of a tool and its pin, the fleet's word counted. That an operator has approved it elsewhere is left to
    /// whoever puts that on record.
    pub(super) fn judge_shared(
        &self,
        tool: &ToolName,
        pin: Option<&Pin>,
        sighted: &Sighted<'_>,
    ) -> (Trust, Pin, Option<PinEvent>) {
        let own = self.judge(pin, sighted);
        let Some(of_tool) = self.shared.of(tool) else { return own };
        let digest = sighted.digest;
        match (of_tool.get(&digest), own.0) {
            (Some(SharedVerdict::Held), Trust::Given) if !is_approved(&own.1, digest) => {
                let held = Pin { held: Some(digest), told: own.1.told, ..accepted(pin, sighted) };
                (Trust::Withheld, held, Some(PinEvent::HeldElsewhere))
            }
            (Some(SharedVerdict::Pinned), Trust::Withheld)
                if pin.is_none() && !self.is_serious(sighted.findings) =>
            {
                let accepted = Some(AcceptedDefinition::listed_now(digest));
                (Trust::Given, Pin { accepted, ..Pin::default() }, None)
            }
            (None, Trust::Given) if pin.is_none() => {
                let parts = compared(None, sighted.listed);
                let grade = grade::gravest(&parts);
                let action = self.settings.on_change.of(grade);
                if !is_known(of_tool) || action != ChangeAction::Quarantine {
                    return own;
                }
                let held = Pin { held: Some(digest), ..Pin::default() };
                (Trust::Withheld, held, Some(PinEvent::Changed { grade, parts, action }))
            }
            _ => own,
        }
    }
}

/// Whether an operator has approved that definition here.
fn is_approved(pin: &Pin, digest: DefinitionDigest) -> bool {
    pin.accepted.as_ref().is_some_and(|it| it.by_operator && it.digest == digest)
}

/// A pin as it was, with the definition that was accepted, as far as it is known.
fn accepted(pin: Option<&Pin>, sighted: &Sighted<'_>) -> Pin {
    let Some(accepted) = pin.and_then(|pin| pin.accepted.clone()) else { return Pin::default() };
    let before = sighted.before.filter(|(before, _)| *before == accepted.digest);
    let before = before.map(|(_, listed)| Arc::clone(listed));
    let listed = match accepted.digest == sighted.digest {
        true => None,
        false => accepted.listed.clone().or(before),
    };
    Pin { accepted: Some(AcceptedDefinition { listed, ..accepted }), ..Pin::default() }
}

/// What became of tools by the fleet's word.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct SharedEffect {
    /// Those that wait for an operator from now on.
    pub withheld: Vec<(ToolName, DefinitionDigest)>,
    /// Those that were held at first sight, and that the fleet knew.
    pub released: Vec<(ToolName, DefinitionDigest)>,
    /// Why this will not outlast a restart, if it will not.
    pub disk: Option<String>,
}

impl Catalog {
    /// This counts of definitions that are taken up from now on: to be called before any is.
    pub fn begin_with(&self, shared: SharedPins) {
        self.shared.store(Arc::new(shared));
    }

    /// This counts from now on, for what is listed now, too; for the next call, and on disk when this ends. Blocks on the disk.
    pub fn share(&self, shared: SharedPins) -> SharedEffect {
        let shared = Arc::new(shared);
        self.shared.store(Arc::clone(&shared));
        let mut effect = {
            let _writing = self.writing.lock();
            let last = self.load();
            let serious = |direct: &DirectTool| {
                let findings: Vec<_> = direct.findings();
                pins::is_serious(&self.settings.load().review, &findings)
            };
            let (next, effect) = shared_out(&last, &shared, serious);
            if let Some(next) = next {
                self.published.swap(next, true);
            }
            effect
        };
        if !(effect.withheld.is_empty() && effect.released.is_empty()) {
            effect.disk = self.write_pins();
        }
        effect
    }
}

/// The next snapshot, if tools stand otherwise in it.
fn shared_out(
    last: &Snapshot,
    shared: &SharedPins,
    serious: impl Fn(&DirectTool) -> bool,
) -> (Option<Snapshot>, SharedEffect) {
    let (mut effect, mut servers) = (SharedEffect::default(), last.servers.clone());
    let mut direct: Vec<DirectTool> = Vec::with_capacity(last.direct.len());
    for one in last.direct.iter() {
        let (name, digest) = (&one.tool.name, one.review.digest);
        let known = servers.get_mut(&name.server);
        let pins = known.as_ref().and_then(|known| known.pins.pins());
        let pin = pins.and_then(|pins| pins.get(&name.tool)).cloned().unwrap_or_default();
        let next = match (shared.verdict(name, digest), one.tool.trust) {
            (Some(SharedVerdict::Held), Trust::Given) if !is_approved(&pin, digest) => {
                effect.withheld.push((name.clone(), digest));
                Some((Trust::Withheld, Pin { held: Some(digest), ..pin }))
            }
            (Some(SharedVerdict::Pinned), Trust::Withheld)
                if pin.accepted.is_none() && pin.held == Some(digest) && !serious(one) =>
            {
                effect.released.push((name.clone(), digest));
                let accepted = Some(AcceptedDefinition::listed_now(digest));
                Some((Trust::Given, Pin { accepted, held: None, ..pin }))
            }
            _ => None,
        };
        let (Some((trust, pin)), Some(known)) = (next, known) else {
            direct.push(one.clone());
            continue;
        };
        let mut pins = known.pins.pins().map(|pins| (**pins).clone()).unwrap_or_default();
        pins.0.insert(Arc::clone(&name.tool), pin);
        known.pins = PinHistory::Known(Arc::new(pins));
        direct.push(DirectTool { tool: Arc::new(one.tool.trusted(trust)), ..one.clone() });
    }
    let differs = !(effect.withheld.is_empty() && effect.released.is_empty());
    (differs.then(|| assembled(direct, servers, Arc::clone(&last.index))), effect)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::exposed;
    use crate::catalog::listing::Listed;
    use crate::catalog::on_change::{ChangeActions, ReviewSettings};

    fn name(tool: &str) -> ToolName {
        ToolName { server: "s".into(), tool: tool.into() }
    }

    fn listed(more: &str) -> Arc<Listed> {
        let json = format!(r#"{{"name":"s__x","inputSchema":{{}}{more}}}"#);
        Arc::new(Listed::stored(exposed::name("s", "x"), "x", &json))
    }

    fn digest(listed: &Listed) -> DefinitionDigest {
        DefinitionDigest::of(listed.json())
    }

    const LAX: ChangeActions = ChangeActions {
        text: ChangeAction::Accept,
        narrowed: ChangeAction::Accept,
        widened: ChangeAction::Accept,
        loosened: ChangeAction::Accept,
    };

    /// What becomes of a definition at a node with that pin.
    fn judged(
        shared: &SharedPins,
        first_sight: ChangeAction,
        pin: Option<&Pin>,
        now: &Arc<Listed>,
    ) -> (Trust, Pin, Option<PinEvent>) {
        let settings = match pin {
            // What is another at all is accepted here.
            Some(_) => ReviewSettings { on_change: LAX, ..ReviewSettings::default() },
            None => ReviewSettings::default(),
        };
        let judge = Judge { settings: &settings, first_sight, shared };
        let sighted = Sighted { digest: digest(now), listed: now, before: None, findings: &[] };
        judge.judge_shared(&name("x"), pin, &sighted)
    }

    #[test]
    fn a_node_that_sees_a_tool_first_judges_it_by_what_the_fleet_knows() {
        let (known, other) = (listed(""), listed(r#","description":"another""#));
        let mut shared = SharedPins::default();
        let accept = ChangeAction::Accept;
        assert_eq!(judged(&shared, accept, None, &other).0, Trust::Given, "nobody knows the tool");
        shared.add(&name("x"), digest(&known), SharedVerdict::Pinned);
        let same = judged(&shared, ChangeAction::Quarantine, None, &known);
        assert_eq!((same.0, same.2), (Trust::Given, None), "it is pinned already");
        let changed = judged(&shared, accept, None, &other);
        assert_eq!(changed.0, Trust::Withheld, "what it was before is not known here");
        assert_eq!(changed.1.held, Some(digest(&other)));
        let of_another = judged(&shared, accept, None, &listed(r#","title":"y""#));
        assert_eq!(of_another.0, Trust::Withheld);
    }

    #[test]
    fn what_is_held_at_one_node_is_held_where_it_would_be_accepted_until_it_is_approved() {
        let (old, new) = (listed(""), listed(r#","description":"another""#));
        let mut shared = SharedPins::default();
        shared.add(&name("x"), digest(&new), SharedVerdict::Held);
        let accepted = Some(AcceptedDefinition::listed_now(digest(&old)));
        let pin = Pin { accepted, ..Pin::default() };
        let (trust, held, event) = judged(&shared, ChangeAction::Accept, Some(&pin), &new);
        assert_eq!((trust, event), (Trust::Withheld, Some(PinEvent::HeldElsewhere)));
        assert_eq!(held.accepted.as_ref().map(|it| it.digest), Some(digest(&old)), "the pin stays");
        assert_eq!(held.held, Some(digest(&new)));
        let first = judged(&shared, ChangeAction::Accept, None, &new);
        assert_eq!((first.0, first.1.accepted), (Trust::Withheld, None));
        // The one before is still what it was.
        assert_eq!(judged(&shared, ChangeAction::Accept, Some(&pin), &old).0, Trust::Given);
        let (other, pin_of) = (listed(r#","title":"z""#), Some(&pin));
        let free = judged(&shared, ChangeAction::Accept, pin_of, &other);
        assert_eq!(free.0, Trust::Given, "nobody holds this one");
        // An operator has approved it here, or elsewhere, which is put on record by another.
        let by_operator = AcceptedDefinition {
            by_operator: true,
            ..AcceptedDefinition::listed_now(digest(&new))
        };
        let approved = Pin { accepted: Some(by_operator), ..Pin::default() };
        assert_eq!(judged(&shared, ChangeAction::Accept, Some(&approved), &new).0, Trust::Given);
        shared.add(&name("x"), digest(&new), SharedVerdict::Approved);
        assert_eq!(judged(&shared, ChangeAction::Accept, None, &new).0, Trust::Given);
    }
}
