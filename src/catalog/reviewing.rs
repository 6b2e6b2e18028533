//! What becomes of the definitions of a snapshot that is about to be in force: each is judged by its pin and by what the
//! scan says of it, alone and beside the others. Pure; the rules are `pins`' and `scan`'s.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::change::{Change, FirstSight};
use super::definition::DefinitionDigest;
use super::discovered::DiscoveredTool;
use super::listing::Listed;
use super::on_change::{ChangeAction, ReviewSettings, ScanMode};
use super::pins::{Judge, MAX_PINS, Pin, PinEvent, PinHistory, ServerPins, Sighted};
use super::scan::{self, others};
use super::shared_pins::SharedPins;
use super::snapshot::{DirectTool, KnownServer, Review, Snapshot, ToolSet};
use crate::tool::{ToolName, Trust};

/// What is to be known of the tools of sets, in their order; `None` for what is as it was.
pub(super) type Reviews = Vec<Vec<Option<Arc<Review>>>>;

/// What is to be known of the definitions of sets, each as far as it is another than in `last`, or its
/// server is among those to be looked through `again`. This is what takes time,
/// and is done before others have to wait.
pub(super) fn reviews(
    settings: &ReviewSettings,
    last: &Snapshot,
    sets: &[(&str, &[DiscoveredTool])],
    again: &BTreeSet<Arc<str>>,
) -> Reviews {
    let one = |server: &str, found: &DiscoveredTool| {
        let again = again.contains(server);
        let listed = found.listed(server);
        let known = last.find_direct(&listed.key).is_some_and(|direct| *direct.listed == listed);
        (again || !known).then(|| Arc::new(review(settings, found, &listed)))
    };
    let sets = sets.iter();
    sets.map(|(server, set)| set.iter().map(|found| one(server, found)).collect()).collect()
}

/// What is to be known of a definition that is new.
pub(super) fn review(settings: &ReviewSettings, found: &DiscoveredTool, listed: &Listed) -> Review {
    let digest = DefinitionDigest::of(listed.json());
    match settings.scan {
        ScanMode::Off => Review { digest, look: "".into(), scanned: scan::Scanned::default() },
        ScanMode::Warn | ScanMode::Quarantine => Review {
            digest,
            look: others::look(&found.name),
            scanned: scan::scan(&found.name, found.raw.get()),
        },
    }
}

/// A server's set that is taken up.
pub(super) struct TakenSet {
    pub(super) server: Arc<str>,
    pub(super) tools: Vec<DirectTool>,
    pub(super) change: Change,
    /// True if what is shown of its tools is another than before.
    pub(super) differs: bool,
    /// What is pinned of them from now on.
    pub(super) pins: PinHistory,
}

/// Tools of another server that stand otherwise beside what is new.
pub(super) struct Touched {
    pub(super) server: Arc<str>,
    pub(super) tools: Vec<DirectTool>,
    pub(super) pins: PinHistory,
}

/// Judges the tools of `sets`, and those of other servers about which the scan now says something else. What is found of
/// those is told with the first of the sets.
pub(super) fn judge(
    (settings, shared): (&ReviewSettings, &SharedPins),
    last: &Snapshot,
    sets: &mut [TakenSet],
    origin: ToolSet,
) -> Vec<Touched> {
    let taken: BTreeSet<Arc<str>> = sets.iter().map(|set| Arc::clone(&set.server)).collect();
    let beside = beside(settings, last, sets, &taken);
    for set in &mut *sets {
        let Some(known) = last.servers.get(&set.server) else { continue };
        let (first_sight, sight) = first_sight(settings, &known.pins, origin);
        set.change.first_sight = sight;
        let judge = Judge { settings, first_sight, shared };
        let mut judged = BTreeMap::new();
        for direct in &mut set.tools {
            stand(&beside, direct, &mut set.differs);
            let pin = known.pins.pins().and_then(|pins| pins.get(&direct.tool.name.tool));
            let full = pin.is_none() && judged.len() >= MAX_PINS;
            let pin = one(&judge, last, pin, direct, &mut set.change, full);
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
    others_touched((settings, shared), last, &taken, &beside, &mut first.change)
}

type Beside = BTreeMap<ToolName, Arc<[scan::ScanFinding]>>;

/// What the scan says of all tools, beside each other; those of whom it says nothing are left out.
fn beside(
    settings: &ReviewSettings,
    last: &Snapshot,
    sets: &[TakenSet],
    taken: &BTreeSet<Arc<str>>,
) -> Beside {
    if settings.scan == ScanMode::Off {
        return Beside::new();
    }
    let kept = last.direct.iter().filter(|direct| !taken.contains(&direct.tool.name.server));
    let all: Vec<&DirectTool> = kept.chain(sets.iter().flat_map(|set| &set.tools)).collect();
    let named = all.iter().map(|direct| (&direct.tool.name, &*direct.review.look));
    let names = others::Names::of(named);
    let found = all.iter().filter_map(|direct| {
        let Review { look, scanned, .. } = &*direct.review;
        let found = names.findings(&direct.tool.name, look, scanned);
        (!found.is_empty()).then(|| (direct.tool.name.clone(), found.into()))
    });
    found.collect()
}

/// Notes what the scan says of a tool beside the others.
fn stand(beside: &Beside, direct: &mut DirectTool, differs: &mut bool) {
    let found = beside.get(&direct.tool.name).cloned().unwrap_or_default();
    if *found != *direct.beside {
        direct.beside = found;
        *differs = true;
    }
}

/// What is done about a tool without a pin.
fn first_sight(
    settings: &ReviewSettings,
    pins: &PinHistory,
    origin: ToolSet,
) -> (ChangeAction, FirstSight) {
    match (pins, origin) {
        // The set was seen before there were pins.
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

/// Judges one tool; its pin, and whether it is trusted otherwise than before. `full`: there is no room for its pin.
fn one(
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
    let sighted = Sighted { digest, listed, before, findings: &findings };
    let (mut trust, mut pin, event) = judge.judge_shared(&direct.tool.name, pin, &sighted);
    if full {
        trust = Trust::Withheld;
    }
    let told = (!findings.is_empty()).then(|| scan::digest(findings.iter()));
    if told != pin.told {
        pin.told = told;
        if told.is_some() {
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

/// The definition of a tool in the last snapshot.
fn listed_before<'a>(
    last: &'a Snapshot,
    name: &ToolName,
) -> Option<(DefinitionDigest, &'a Arc<Listed>)> {
    let direct = last.find_direct(&super::exposed::name(&name.server, &name.tool))?;
    (direct.tool.name == *name).then_some((direct.review.digest, &direct.listed))
}

/// Judges the tools of servers that are not taken up, where the scan says something else of them.
fn others_touched(
    (settings, shared): (&ReviewSettings, &SharedPins),
    last: &Snapshot,
    taken: &BTreeSet<Arc<str>>,
    beside: &Beside,
    told: &mut Change,
) -> Vec<Touched> {
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
            stand(beside, direct, &mut false);
            let mut change = Change::default();
            let (pin, _) =
                one(&judge, last, pins.get(&direct.tool.name.tool), direct, &mut change, false);
            pins.0.insert(Arc::clone(&direct.tool.name.tool), pin);
            told.found.append(&mut change.found);
            // It is quarantined or not for what was found, which is told above with its full name.
            debug_assert!(
                change.pinned.iter().all(|(_, event)| !matches!(event, PinEvent::Changed { .. }))
            );
        }
        Touched { server, tools, pins: PinHistory::Known(Arc::new(pins)) }
    });
    judged.collect()
}
