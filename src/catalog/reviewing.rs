//! Judgment of the definitions in the next snapshot by their pins and scan findings, both individually and relative to
//! other tools. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::change::{Change, FirstSight};
use super::definition::{DefinitionDigest, DiscoveredTool};
use super::grade::{ChangeAction, ReviewSettings, ScanMode};
use super::listing::Listed;
use super::pins::{
    Judge, ListedDefinition, MAX_PINS, Pin, PinEvent, PinHistory, ServerPins, SharedPins,
};
use super::scan::{self, Names, look};
use super::snapshot::{DirectTool, KnownServer, Review, Snapshot, ToolSet};
use mcpproxy_policy::tool::{ToolName, Trust};

/// Reviews of the tools in sets, in order; `None` if a tool is unchanged.
pub(super) type Reviews = Vec<Vec<Option<Arc<Review>>>>;

/// Reviews changed definitions, and all definitions of the servers in `again`. Slow; called before locks are taken.
pub(super) fn reviews(
    settings: &ReviewSettings,
    last: &Snapshot,
    sets: &[(&str, &[DiscoveredTool])],
    again: &BTreeSet<Arc<str>>,
) -> Reviews {
    let judge_tool = |server: &str, found: &DiscoveredTool| {
        let again = again.contains(server);
        let listed = found.listed(server);
        let known = last.find_direct(&listed.key).is_some_and(|direct| *direct.listed == listed);
        (again || !known).then(|| Arc::new(review(settings, found, &listed)))
    };
    let sets = sets.iter();
    sets.map(|(server, set)| set.iter().map(|found| judge_tool(server, found)).collect()).collect()
}

/// Review of a new definition.
pub(super) fn review(settings: &ReviewSettings, found: &DiscoveredTool, listed: &Listed) -> Review {
    let digest = DefinitionDigest::of(listed.json());
    match settings.scan {
        ScanMode::Off => Review { digest, look: "".into(), scanned: scan::Scanned::default() },
        ScanMode::Warn | ScanMode::Quarantine => Review {
            digest,
            look: look(&found.name),
            scanned: scan::scan(&found.name, found.raw.get()),
        },
    }
}

/// A server's incoming set.
pub(super) struct IncomingSet {
    pub(super) server: Arc<str>,
    pub(super) tools: Vec<DirectTool>,
    pub(super) change: Change,
    /// Whether its published tools changed.
    pub(super) differs: bool,
    /// Next pins.
    pub(super) pins: PinHistory,
}

/// Tools of another server whose findings changed because of the new sets.
pub(super) struct AffectedServer {
    pub(super) server: Arc<str>,
    pub(super) tools: Vec<DirectTool>,
    pub(super) pins: PinHistory,
}

/// Judges the tools of `sets`, and the tools of other servers whose findings changed. The latter are reported with the
/// first set.
pub(super) fn judge(
    (settings, shared): (&ReviewSettings, &SharedPins),
    last: &Snapshot,
    sets: &mut [IncomingSet],
    origin: ToolSet,
) -> Vec<AffectedServer> {
    let taken: BTreeSet<Arc<str>> = sets.iter().map(|set| Arc::clone(&set.server)).collect();
    let beside = beside(settings, last, sets, &taken);
    for set in &mut *sets {
        let Some(known) = last.servers.get(&set.server) else { continue };
        let (first_sight, sight) = first_sight(settings, &known.pins, origin);
        set.change.first_sight = sight;
        let judge = Judge { settings, first_sight, shared };
        let mut judged = BTreeMap::new();
        for direct in &mut set.tools {
            set_relative_findings(&beside, direct, &mut set.differs);
            let pin = known.pins.pins().and_then(|pins| pins.get(&direct.tool.name.tool));
            let full = pin.is_none() && judged.len() >= MAX_PINS;
            let pin = judge_tool(&judge, last, pin, direct, &mut set.change, full);
            set.differs |= pin.1;
            judged.insert(Arc::clone(&direct.tool.name.tool), pin.0);
        }
        let old = known.pins.pins();
        let listed = |tool: &str| {
            listed_before(last, &ToolName { server: Arc::clone(&set.server), tool: tool.into() })
        };
        let next = ServerPins::next(judged, old.map(|old| &**old), listed);
        set.pins = match old {
            Some(old) if **old == next => PinHistory::Known(Arc::clone(old)),
            Some(_) | None => PinHistory::Known(Arc::new(next)),
        };
    }
    let Some(first) = sets.first_mut() else { return Vec::new() };
    affected_servers((settings, shared), last, &taken, &beside, &mut first.change)
}

type CrossFindings = BTreeMap<ToolName, Arc<[scan::ScanFinding]>>;

/// Scan findings of all tools relative to each other; tools without findings are omitted.
fn beside(
    settings: &ReviewSettings,
    last: &Snapshot,
    sets: &[IncomingSet],
    taken: &BTreeSet<Arc<str>>,
) -> CrossFindings {
    if settings.scan == ScanMode::Off {
        return CrossFindings::new();
    }
    let kept = last.direct.iter().filter(|direct| !taken.contains(&direct.tool.name.server));
    let all: Vec<&DirectTool> = kept.chain(sets.iter().flat_map(|set| &set.tools)).collect();
    let named = all.iter().map(|direct| (&direct.tool.name, &*direct.review.look));
    let names = Names::of(named);
    let found = all.iter().filter_map(|direct| {
        let Review { look, scanned, .. } = &*direct.review;
        let found = names.findings(&direct.tool.name, look, scanned);
        (!found.is_empty()).then(|| (direct.tool.name.clone(), found.into()))
    });
    found.collect()
}

/// Updates the relative findings of a tool.
fn set_relative_findings(beside: &CrossFindings, direct: &mut DirectTool, differs: &mut bool) {
    let found = beside.get(&direct.tool.name).cloned().unwrap_or_default();
    if *found != *direct.beside {
        direct.beside = found;
        *differs = true;
    }
}

/// Action for a tool without a pin.
fn first_sight(
    settings: &ReviewSettings,
    pins: &PinHistory,
    origin: ToolSet,
) -> (ChangeAction, FirstSight) {
    match (pins, origin) {
        // The stored set was written before pins existed.
        (PinHistory::New, ToolSet::Restored) => {
            (ChangeAction::Accept, FirstSight::NewServer(ChangeAction::Accept))
        }
        (PinHistory::New, ToolSet::Awaited | ToolSet::Discovered) => {
            (settings.on_new_server, FirstSight::NewServer(settings.on_new_server))
        }
        (PinHistory::Known(_), _) => (settings.on_change.widened, FirstSight::Known),
        (PinHistory::Lost, _) => {
            let action = match settings.quarantines() {
                true => ChangeAction::Quarantine,
                false => ChangeAction::Warn,
            };
            (action, FirstSight::Lost(action))
        }
    }
}

/// Judges one tool. Returns its pin and whether its trust changed. `full` means that the pin limit is reached.
fn judge_tool(
    judge: &Judge<'_>,
    last: &Snapshot,
    pin: Option<&Pin>,
    direct: &mut DirectTool,
    change: &mut Change,
    full: bool,
) -> (Pin, bool) {
    let findings = direct.findings();
    let before = listed_before(last, &direct.tool.name);
    let (digest, listed) = (direct.review.digest, &direct.listed);
    let definition = ListedDefinition { digest, listed, before, findings: &findings };
    let (mut trust, mut pin, event) = judge.judge_shared(&direct.tool.name, pin, &definition);
    if full {
        trust = Trust::Withheld;
    }
    let reported = (!findings.is_empty()).then(|| scan::digest(findings.iter()));
    if reported != pin.reported {
        pin.reported = reported;
        if reported.is_some() {
            change.found.push((direct.tool.name.clone(), findings));
        }
    }
    change.pinned.extend(event.map(|event| (Arc::clone(&direct.tool.name.tool), event)));
    let differs = direct.tool.trust != trust;
    if differs {
        direct.tool = Arc::new(direct.tool.trusted(trust));
    }
    (pin, differs)
}

/// Definition of a tool in the last snapshot.
fn listed_before<'a>(
    last: &'a Snapshot,
    name: &ToolName,
) -> Option<(DefinitionDigest, &'a Arc<Listed>)> {
    let direct = last.find_direct(&super::exposed::name(&name.server, &name.tool))?;
    (direct.tool.name == *name).then_some((direct.review.digest, &direct.listed))
}

/// Judges tools of other servers whose findings changed.
fn affected_servers(
    (settings, shared): (&ReviewSettings, &SharedPins),
    last: &Snapshot,
    taken: &BTreeSet<Arc<str>>,
    beside: &CrossFindings,
    reported: &mut Change,
) -> Vec<AffectedServer> {
    let mut touched = BTreeMap::<Arc<str>, Vec<DirectTool>>::new();
    for direct in last.direct.iter() {
        let name = &direct.tool.name;
        if !taken.contains(&name.server)
            && beside.get(name).map_or(&[][..], |it| &**it) != &*direct.beside
        {
            touched.entry(Arc::clone(&name.server)).or_default().push(direct.clone());
        }
    }
    let judge = Judge { settings, first_sight: ChangeAction::Accept, shared };
    let judged = touched.into_iter().map(|(server, mut tools)| {
        let history = last.servers.get(&server).map(|known: &KnownServer| known.pins.clone());
        let mut pins = history
            .as_ref()
            .and_then(|pins| pins.pins())
            .map(|pins| (**pins).clone())
            .unwrap_or_default();
        for direct in &mut tools {
            set_relative_findings(beside, direct, &mut false);
            let mut change = Change::default();
            let (pin, _) = judge_tool(
                &judge,
                last,
                pins.get(&direct.tool.name.tool),
                direct,
                &mut change,
                false,
            );
            pins.0.insert(Arc::clone(&direct.tool.name.tool), pin);
            reported.found.append(&mut change.found);
            // The quarantine changed because of findings, which are reported above with the full name.
            debug_assert!(
                change.pinned.iter().all(|(_, event)| !matches!(event, PinEvent::Changed { .. }))
            );
        }
        AffectedServer { server, tools, pins: PinHistory::Known(Arc::new(pins)) }
    });
    judged.collect()
}
