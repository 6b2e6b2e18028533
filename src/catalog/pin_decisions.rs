//! Decisions about pins that come from outside: approvals by operators, and verdicts of other fleet nodes.
//!
//! An approval names the digest of the reviewed definition and is rejected if the server has changed the definition
//! since. Callers are responsible for authorization and records.

use std::sync::Arc;

use super::Catalog;
use super::definition::DefinitionDigest;
use super::grade::{self, ChangeAction};
use super::pins::{
    self, AcceptedDefinition, Judge, ListedDefinition, Pin, PinEvent, PinHistory, SharedPins,
    SharedVerdict, compared, is_known,
};
use super::replacing::assembled;
use super::snapshot::{DirectTool, Reviewed, Snapshot};
use mcpproxy_policy::tool::{ToolName, Trust};

/// Target of an approval: a tool, or all quarantined tools of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApprovalTarget {
    OneTool(ToolName),
    /// All quarantined tools of this server.
    WholeServer(Arc<str>),
}

/// Reason why an approval is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApprovalRefused {
    #[error("'{0}': no definition is pending approval")]
    NothingWaits(String),
    #[error("'{0}' changed since it was reviewed; review the diff again")]
    Changed(String),
    /// Internal failure.
    #[error("internal error while approving '{0}'; see the proxy's log")]
    Failed(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApprovedTools {
    /// Approved tools and definitions.
    pub tools: Vec<(ToolName, DefinitionDigest)>,
    /// Error of writing the pins, if any; the approval then does not survive a restart.
    pub disk: Option<String>,
}

impl ApprovalTarget {
    /// Resolves `server:tool` or a server name.
    pub fn named(snapshot: &Snapshot, name: &str) -> Option<Self> {
        let tool = ToolName::parse(name).filter(|name| snapshot.tool(name).is_some());
        let server =
            || snapshot.servers().map(|(server, _)| server).find(|server| ***server == *name);
        tool.map(Self::OneTool).or_else(|| server().cloned().map(Self::WholeServer))
    }

    /// The targeted tools: a single tool in any state, or the quarantined tools of a server.
    pub fn tools<'a>(&self, snapshot: &'a Snapshot) -> Vec<Reviewed<'a>> {
        match self {
            Self::OneTool(name) => snapshot.reviewed(name).into_iter().collect(),
            Self::WholeServer(server) => snapshot.quarantined(server),
        }
    }

    /// Digest of the reviewed definitions.
    pub fn digest(&self, tools: &[Reviewed<'_>]) -> DefinitionDigest {
        match (self, tools) {
            (Self::OneTool(_), [one]) => one.digest,
            (Self::OneTool(_) | Self::WholeServer(_), _) => DefinitionDigest::of_all(
                tools.iter().map(|reviewed| (&*reviewed.tool.name.tool, reviewed.digest)),
            ),
        }
    }

    pub fn name(&self) -> String {
        match self {
            Self::OneTool(name) => name.to_string(),
            Self::WholeServer(server) => server.to_string(),
        }
    }

    fn server(&self) -> &Arc<str> {
        match self {
            Self::OneTool(name) => &name.server,
            Self::WholeServer(server) => server,
        }
    }
}

impl Catalog {
    /// Approves the target if its definitions are the reviewed ones. On return the approval is in force for the next
    /// call, and on disk. On an error nothing has changed.
    pub async fn approve(
        self: &Arc<Self>,
        target: ApprovalTarget,
        seen: DefinitionDigest,
    ) -> Result<ApprovedTools, ApprovalRefused> {
        let (catalog, name) = (Arc::clone(self), target.name());
        let done = self.threads.run(move || {
            let tools = catalog.trust(&target, seen)?;
            Ok(ApprovedTools { tools, disk: catalog.write_pins() })
        });
        done.await.unwrap_or(Err(ApprovalRefused::Failed(name)))
    }

    fn trust(
        &self,
        target: &ApprovalTarget,
        seen: DefinitionDigest,
    ) -> Result<Vec<(ToolName, DefinitionDigest)>, ApprovalRefused> {
        let _writing = self.writing.lock();
        let last = self.load();
        let mut tools = target.tools(&last);
        if target.digest(&tools) != seen && tools.iter().any(|it| it.tool.trust == Trust::Withheld)
        {
            return Err(ApprovalRefused::Changed(target.name()));
        }
        tools.retain(|reviewed| reviewed.tool.trust == Trust::Withheld);
        let mut servers = last.servers.clone();
        let (Some(known), false) = (servers.get_mut(target.server()), tools.is_empty()) else {
            return Err(ApprovalRefused::NothingWaits(target.name()));
        };
        let mut pins = known.pins.pins().map(|pins| (**pins).clone()).unwrap_or_default();
        for Reviewed { tool, digest, pin, .. } in &tools {
            let accepted = AcceptedDefinition { digest: *digest, listed: None, by_operator: true };
            let reported = pin.and_then(|pin| pin.reported);
            let pin = Pin { accepted: Some(accepted), held: None, reported };
            pins.0.insert(Arc::clone(&tool.name.tool), pin);
        }
        known.pins = PinHistory::Known(Arc::new(pins));
        let trusted = |direct: &DirectTool| {
            let meant = tools.iter().any(|reviewed| Arc::ptr_eq(reviewed.tool, &direct.tool));
            match meant {
                true => DirectTool {
                    tool: Arc::new(direct.tool.trusted(Trust::Given)),
                    ..direct.clone()
                },
                false => direct.clone(),
            }
        };
        let direct = last.direct.iter().map(trusted).collect();
        let approved = tools.iter().map(|it| (it.tool.name.clone(), it.digest)).collect();
        self.published.swap(assembled(direct, servers, Arc::clone(&last.index)), true);
        Ok(approved)
    }
}

impl Judge<'_> {
    /// Judges a tool by the verdicts of the fleet. Approvals on other nodes are left to the caller, which records them.
    pub(super) fn judge_shared(
        &self,
        tool: &ToolName,
        pin: Option<&Pin>,
        definition: &ListedDefinition<'_>,
    ) -> (Trust, Pin, Option<PinEvent>) {
        let own = self.judge(pin, definition);
        let Some(of_tool) = self.shared.of(tool) else { return own };
        let digest = definition.digest;
        match (of_tool.get(&digest), own.0) {
            (Some(SharedVerdict::Held), Trust::Given) if !is_approved(&own.1, digest) => {
                let held = Pin {
                    held: Some(digest),
                    reported: own.1.reported,
                    ..accepted(pin, definition)
                };
                (Trust::Withheld, held, Some(PinEvent::HeldElsewhere))
            }
            (Some(SharedVerdict::Pinned), Trust::Withheld)
                if pin.is_none() && !self.is_serious(definition.findings) =>
            {
                let accepted = Some(AcceptedDefinition::listed_now(digest));
                (Trust::Given, Pin { accepted, ..Pin::default() }, None)
            }
            (None, Trust::Given) if pin.is_none() => {
                let parts = compared(None, definition.listed);
                let grade = grade::highest(&parts);
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

/// Whether an operator approved this definition on this node.
fn is_approved(pin: &Pin, digest: DefinitionDigest) -> bool {
    pin.accepted.as_ref().is_some_and(|it| it.by_operator && it.digest == digest)
}

/// The previous pin with the accepted definition, if that is known.
fn accepted(pin: Option<&Pin>, definition: &ListedDefinition<'_>) -> Pin {
    let Some(accepted) = pin.and_then(|pin| pin.accepted.clone()) else { return Pin::default() };
    let before = definition.before.filter(|(before, _)| *before == accepted.digest);
    let before = before.map(|(_, listed)| Arc::clone(listed));
    let listed = match accepted.digest == definition.digest {
        true => None,
        false => accepted.listed.clone().or(before),
    };
    Pin { accepted: Some(AcceptedDefinition { listed, ..accepted }), ..Pin::default() }
}

/// Effect of shared verdicts.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct SharedEffect {
    /// Newly quarantined definitions.
    pub withheld: Vec<(ToolName, DefinitionDigest)>,
    /// Released definitions that were held at first sight and are known to the fleet.
    pub released: Vec<(ToolName, DefinitionDigest)>,
    /// Error of writing the pins, if any; the effect then does not survive a restart.
    pub disk: Option<String>,
}

impl Catalog {
    /// Sets the shared verdicts before any set is applied.
    pub fn begin_with(&self, shared: SharedPins) {
        self.shared.store(Arc::new(shared));
    }

    /// Applies shared verdicts to current and future definitions. On return they are in force for the next call, and on
    /// disk. Blocks on the disk.
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
            let (next, effect) = apply_shared(&last, &shared, serious);
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

/// Returns the next snapshot if the trust of any tool changes.
fn apply_shared(
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
    use crate::exposed;
    use crate::grade::{ChangeActions, ReviewSettings};
    use crate::listing::Listed;

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

    /// Judges a definition on a node that has this pin.
    fn judged(
        shared: &SharedPins,
        first_sight: ChangeAction,
        pin: Option<&Pin>,
        now: &Arc<Listed>,
    ) -> (Trust, Pin, Option<PinEvent>) {
        let settings = match pin {
            // Any change is accepted here.
            Some(_) => ReviewSettings { on_change: LAX, ..ReviewSettings::default() },
            None => ReviewSettings::default(),
        };
        let judge = Judge { settings: &settings, first_sight, shared };
        let definition =
            ListedDefinition { digest: digest(now), listed: now, before: None, findings: &[] };
        judge.judge_shared(&name("x"), pin, &definition)
    }

    #[test]
    fn tool_first_seen_by_a_node_uses_the_verdicts_of_the_fleet() {
        let (known, other) = (listed(""), listed(r#","description":"another""#));
        let mut shared = SharedPins::default();
        let accept = ChangeAction::Accept;
        assert_eq!(judged(&shared, accept, None, &other).0, Trust::Given, "no node knows the tool");
        shared.add(&name("x"), digest(&known), SharedVerdict::Pinned);
        let same = judged(&shared, ChangeAction::Quarantine, None, &known);
        assert_eq!(
            (same.0, same.2),
            (Trust::Given, None),
            "another node has pinned the definition"
        );
        let changed = judged(&shared, accept, None, &other);
        assert_eq!(changed.0, Trust::Withheld, "the earlier definition is unknown here");
        assert_eq!(changed.1.held, Some(digest(&other)));
        let of_another = judged(&shared, accept, None, &listed(r#","title":"y""#));
        assert_eq!(of_another.0, Trust::Withheld);
    }

    #[test]
    fn quarantine_on_one_node_applies_fleet_wide_until_approved() {
        let (old, new) = (listed(""), listed(r#","description":"another""#));
        let mut shared = SharedPins::default();
        shared.add(&name("x"), digest(&new), SharedVerdict::Held);
        let accepted = Some(AcceptedDefinition::listed_now(digest(&old)));
        let pin = Pin { accepted, ..Pin::default() };
        let (trust, held, event) = judged(&shared, ChangeAction::Accept, Some(&pin), &new);
        assert_eq!((trust, event), (Trust::Withheld, Some(PinEvent::HeldElsewhere)));
        assert_eq!(
            held.accepted.as_ref().map(|it| it.digest),
            Some(digest(&old)),
            "the pin is unchanged"
        );
        assert_eq!(held.held, Some(digest(&new)));
        let first = judged(&shared, ChangeAction::Accept, None, &new);
        assert_eq!((first.0, first.1.accepted), (Trust::Withheld, None));
        // The previous definition keeps its verdict.
        assert_eq!(judged(&shared, ChangeAction::Accept, Some(&pin), &old).0, Trust::Given);
        let (other, pin_of) = (listed(r#","title":"z""#), Some(&pin));
        let free = judged(&shared, ChangeAction::Accept, pin_of, &other);
        assert_eq!(free.0, Trust::Given, "no node holds this definition");
        // An operator approved the definition, on this node or on another one. A different component records the
        // approvals on other nodes.
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
