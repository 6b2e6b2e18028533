//! The configs of a fleet as they lie in its store: how one is had, under whatever key and from whichever node's copy, and that
//! all of them outlast a change of `cluster.key`. What is made of one is `fleet_config`'s.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::super::shared_facts::SharedFacts;
use crate::api::config_door::{ReloadRefused, ShownProblem};
use crate::config::fleet_config::SharedConfig;
use crate::fleet::bucket::BucketError;
use crate::fleet::facts::{CONFIGS, ConfigFact, ConfigVersion, FactFault};

/// That configs are not sealed by the newest key yet, among what is wrong with what is shared.
const SEALED_PART: &str = "config key";
/// Most time to see which copies there are of a config.
const LIST_LIMIT: Duration = Duration::from_secs(10);
/// For how long a node that starts and has none of the fleet's tries to fetch it, and how soon again.
const FETCH_AT_START: Duration = Duration::from_secs(15);
const FETCH_AGAIN: Duration = Duration::from_millis(500);
/// How soon a config that could not be fetched is tried again.
pub(super) const TRY_AGAIN: Duration = Duration::from_secs(2);
/// The longest pause before it is tried again to seal configs anew: each time lists all copies that there are.
const SEAL_AGAIN: Duration = Duration::from_secs(300);

/// Why a config is not taken over.
#[derive(Debug)]
pub(super) enum NotTaken {
    /// It cannot be used here.
    Refused(ReloadRefused),
    /// It could not be fetched now.
    Store(BucketError),
    /// What lies there cannot be opened: it was altered, or is sealed by a key that this node does not have.
    Unopened(BucketError),
}

impl NotTaken {
    /// Whether it may be had later without that somebody puts it there once more.
    fn can_pass(&self) -> bool {
        let is_gone = |error: &BucketError| {
            matches!(error, BucketError::Missing(_) | BucketError::TooLong(_))
        };
        match self {
            Self::Refused(_) | Self::Unopened(_) => false,
            Self::Store(error) => !is_gone(error),
        }
    }

    /// In words, for the log and for faults.
    fn words(&self) -> String {
        match self {
            Self::Refused(refused) => reasons(refused),
            Self::Store(error) | Self::Unopened(error) => error.to_string(),
        }
    }
}

impl From<ReloadRefused> for NotTaken {
    fn from(refused: ReloadRefused) -> Self {
        Self::Refused(refused)
    }
}

/// Has the config, and those before it, sealed by the newest key as well, while `cluster.key` has older ones: who comes later has
/// none of these.
///
/// It has to come off for the config that the fleet runs. An earlier one that is not there any more, or that nobody can open, is
/// told once and left: it cannot be gone back to in any case, and keeps nobody from dropping the older key.
#[derive(Debug, Default)]
pub(super) struct AnewSealing {
    /// The version that it is about, with those before it.
    version: Option<ConfigVersion>,
    /// Whether it came off.
    is_done: bool,
    /// Hashes of those that are sealed anew, or say something else than their names do, which is for nobody.
    sealed: BTreeSet<String>,
    /// Of those that cannot be any more.
    lost: BTreeSet<String>,
    /// When it is tried again, and the pause before that.
    due: Option<Instant>,
    pause: Duration,
}

impl AnewSealing {
    /// Goes on with it, if it is time. For how long there is nothing to do then.
    pub(super) async fn step(&mut self, shared: &SharedFacts, fact: &ConfigFact) -> Duration {
        if !shared.facts.has_older_keys() {
            return Duration::MAX;
        }
        if self.version.as_ref() != Some(&fact.now) {
            let is_there = |hash: &String| versions(fact).any(|version| version.hash == *hash);
            self.sealed.retain(is_there);
            self.lost.retain(is_there);
            let (sealed, lost) = (std::mem::take(&mut self.sealed), std::mem::take(&mut self.lost));
            *self = Self { version: Some(fact.now.clone()), sealed, lost, ..Self::default() };
        }
        if self.is_done {
            return Duration::MAX;
        }
        let wait = self.due.map(|due| due.saturating_duration_since(Instant::now()));
        if let Some(wait) = wait.filter(|wait| !wait.is_zero()) {
            return wait;
        }
        let fault = self.seal(shared, fact).await.err();
        self.is_done = fault.is_none();
        shared.facts.tell_fault(SEALED_PART, fault);
        if self.is_done {
            return Duration::MAX;
        }
        self.pause = (self.pause * 2).clamp(TRY_AGAIN, SEAL_AGAIN);
        self.due = Instant::now().checked_add(self.pause);
        self.pause
    }

    /// Seals what is not sealed yet. What is wrong with the first that is to be tried again.
    async fn seal(&mut self, shared: &SharedFacts, fact: &ConfigFact) -> Result<(), String> {
        let mut failed = Ok(());
        for version in versions(fact) {
            let is_now = *version == fact.now;
            let is_lost = !is_now && self.lost.contains(&version.hash);
            if is_lost || self.sealed.contains(&version.hash) {
                continue;
            }
            let error = match seal_version(shared, version).await {
                Ok(()) => {
                    self.sealed.insert(version.hash.clone());
                    continue;
                }
                Err(error) => error,
            };
            let (number, can_pass) = (version.version, error.can_pass());
            let is_late = matches!(error, NotTaken::Store(BucketError::Late(_)));
            // In another store than the node's own nothing is there, which says nothing of what is in that.
            let elsewhere = match can_pass {
                true => None,
                false => shared.facts.check_place(&shared.bucket).await.err(),
            };
            if !is_now && !can_pass && elsewhere.is_none() {
                let why = error.words();
                tracing::warn!(
                    version = number,
                    why,
                    "an earlier version of the fleet's config cannot be gone back to any more"
                );
                self.lost.insert(version.hash.clone());
                continue;
            }
            let may_pass = can_pass || elsewhere.is_some();
            let why = elsewhere.map_or_else(|| error.words(), |error| error.to_string());
            let help = if may_pass { "" } else { "; apply it once more (mcpproxy fleet apply)" };
            let fault = format!(
                "version {number} of the fleet's config is not sealed by the newest cluster.key yet: {why}{help}"
            );
            failed = failed.and(Err(fault));
            // A store that is away is not asked for all of them.
            if is_now && may_pass || is_late {
                break;
            }
        }
        failed
    }
}

/// The config that the fleet runs, and those before it.
fn versions(fact: &ConfigFact) -> impl Iterator<Item = &ConfigVersion> {
    std::iter::once(&fact.now).chain(&fact.earlier)
}

/// Puts a copy of a version that is sealed by the newest key, if there is none.
async fn seal_version(shared: &SharedFacts, version: &ConfigVersion) -> Result<(), NotTaken> {
    let SharedFacts { facts, bucket } = shared;
    match fetch_opened(shared, version).await {
        Ok((_, true)) | Err(NotTaken::Refused(_)) => Ok(()),
        Ok((config, false)) => {
            let copy = version.copy_by(facts.node());
            let put = facts.put_sealed(bucket, &copy, &config.write()).await;
            // That the store has no place for it is not that it is gone.
            put.map_err(|error| NotTaken::Store(BucketError::Failed(error.to_string())))
        }
        Err(error) => Err(error),
    }
}

/// The config of a version, which says what its name says.
pub(super) async fn fetch(
    shared: &SharedFacts,
    version: &ConfigVersion,
) -> Result<SharedConfig, NotTaken> {
    fetch_opened(shared, version).await.map(|(config, _)| config)
}

/// The same, and whether it is sealed by the newest key: as it was put, or a copy that another node has sealed anew.
async fn fetch_opened(
    shared: &SharedFacts,
    version: &ConfigVersion,
) -> Result<(SharedConfig, bool), NotTaken> {
    let mut best = fetch_at(shared, version, &version.key()).await;
    if matches!(best, Ok((_, true))) {
        return best;
    }
    let listed = tokio::time::timeout(LIST_LIMIT, shared.bucket.list(CONFIGS, None)).await;
    let listed = match listed.unwrap_or(Err(BucketError::Late(LIST_LIMIT))) {
        Ok(listed) => listed,
        // There may be copies.
        Err(error) => return or_later(best, NotTaken::Store(error)),
    };
    let copies: Vec<_> = version.copies(listed.iter().map(|it| &*it.key)).collect();
    for key in copies {
        match fetch_at(shared, version, key).await {
            Ok((config, true)) => return Ok((config, true)),
            copy @ Ok((_, false)) if best.is_err() => best = copy,
            Ok((_, false)) => {}
            Err(error) => best = or_later(best, error),
        }
    }
    best
}

/// What was found; where that is nothing, and will be nothing, what may be there later.
fn or_later<T>(found: Result<T, NotTaken>, later: NotTaken) -> Result<T, NotTaken> {
    match found {
        Err(never) if !never.can_pass() && later.can_pass() => Err(later),
        found => found,
    }
}

async fn fetch_at(
    shared: &SharedFacts,
    version: &ConfigVersion,
    key: &str,
) -> Result<(SharedConfig, bool), NotTaken> {
    let SharedFacts { facts, bucket } = shared;
    let opened = facts.get_sealed(bucket, key).await.map_err(NotTaken::Store)?;
    let unopened =
        |why: FactFault| NotTaken::Unopened(BucketError::Failed(format!("{key}: {why}")));
    let opened = opened.map_err(unopened)?;
    let config = SharedConfig::read(&opened.text).map_err(|why| whole(&why))?;
    if config.hash() == version.hash {
        Ok((config, opened.by_first))
    } else {
        Err(whole("it is another one than its name says").into())
    }
}

/// The config of a version, asked for again and again.
pub(super) async fn fetch_patiently(
    shared: &SharedFacts,
    version: &ConfigVersion,
) -> Result<SharedConfig, NotTaken> {
    let mut last = BucketError::Late(FETCH_AT_START);
    let fetched = async {
        loop {
            match fetch(shared, version).await {
                Err(NotTaken::Store(error) | NotTaken::Unopened(error)) => last = error,
                fetched => return fetched,
            }
            tokio::time::sleep(FETCH_AGAIN).await;
        }
    };
    match tokio::time::timeout(FETCH_AT_START, fetched).await {
        Ok(fetched) => fetched,
        Err(_) => Err(NotTaken::Store(last)),
    }
}

/// All that is wrong, since whoever reads it is at another machine.
pub(super) fn reasons(refused: &ReloadRefused) -> String {
    let errors = refused.problems.iter().filter(|it| it.severity == "error");
    errors.map(ShownProblem::line_of_it).collect::<Vec<_>>().join("; ")
}

pub(super) fn problem(problem: String) -> ShownProblem {
    let key = String::new();
    ShownProblem { severity: "error", key, problem, file: None, line: None, column: None }
}

pub(super) fn whole(why: &str) -> ReloadRefused {
    ReloadRefused { problems: vec![problem(why.to_owned())] }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::fleet::bucket::Bucket;
    use crate::fleet::facts::{FactExchangeSettings, FactKeys, FleetFacts, NodeName};
    use crate::fleet::sealed_mark::FleetId;

    const ID: FleetId = FleetId([3; 16]);
    const VERIFIER: &str = "mcpproxy.dev/fleet/1/a+00000000+AA==";
    const OLD: [u8; 32] = [1; 32];
    const NEW: [u8; 32] = [2; 32];

    struct Store(tempfile::TempDir);

    impl Store {
        fn new() -> Self {
            let store = Self(tempfile::tempdir().unwrap());
            store.put("fleet.json", &format!(r#"{{"format":1,"fleet":"{ID}"}}"#));
            store
        }

        fn path(&self, key: &str) -> PathBuf {
            self.0.path().join("store").join(key)
        }

        fn put(&self, key: &str, text: &str) {
            let path = self.path(key);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }

        /// A node of that name, with its place, which has these keys.
        fn node(&self, name: &str, keys: &[[u8; 32]]) -> SharedFacts {
            let claim = serde_json::json!({"format": 1, "node": name, "log": "l", "key": VERIFIER});
            self.put(&format!("nodes/{name}/claim.json"), &claim.to_string());
            let facts = FleetFacts::open(FactExchangeSettings {
                fleet: ID,
                node: NodeName::parse(name).unwrap(),
                folder: self.0.path().join(name),
                keys: FactKeys::new(keys.iter().copied()),
                verifier: VERIFIER.to_owned(),
            });
            let url = format!("file://{}", self.path("").display());
            let bucket = Bucket::open(url.trim_end_matches('/')).unwrap();
            SharedFacts { facts: facts.unwrap(), bucket }
        }

        /// Four versions that a node has applied which has the older key alone.
        async fn applied(&self) -> ConfigFact {
            let a = self.node("a", &[OLD]);
            let mut fact = None;
            for limit in 1..=4 {
                let config = serde_json::json!({"tools_limit": limit});
                let text = serde_json::json!({"format": 1, "config": config, "files": []});
                let config = SharedConfig::read(text.to_string().as_bytes()).unwrap();
                let node = a.facts.node();
                let next = ConfigFact::applied(fact, config.hash(), node, "admin", limit);
                let (key, text) = (next.now.key(), config.write());
                a.facts.put_sealed(&a.bucket, &key, &text).await.unwrap();
                fact = Some(next);
            }
            fact.unwrap()
        }
    }

    #[tokio::test]
    async fn earlier_configs_that_are_gone_keep_none_behind_them_from_being_sealed_anew() {
        let store = Store::new();
        let fact = store.applied().await;
        let [third, second, first] = [0, 1, 2].map(|at| &fact.earlier[at]);
        std::fs::remove_file(store.path(&third.key())).unwrap();
        store.put(&second.key(), "no config");
        let b = store.node("b", &[NEW, OLD]);
        let mut anew = AnewSealing::default();
        assert_eq!(anew.step(&b, &fact).await, Duration::MAX);
        assert_eq!(b.facts.told_faults(), [""; 0]);
        assert_eq!(anew.lost.len(), 2);
        let c = store.node("c", &[NEW]);
        for (version, is_had) in [(&fact.now, true), (third, false), (second, false), (first, true)]
        {
            assert_eq!(fetch(&c, version).await.is_ok(), is_had, "{}", version.version);
        }
        // Nothing is asked of the store once it came off.
        std::fs::remove_dir_all(store.path(CONFIGS)).unwrap();
        assert_eq!(anew.step(&b, &fact).await, Duration::MAX);
    }

    #[tokio::test]
    async fn what_can_pass_is_tried_again_ever_less_often_and_the_config_that_runs_in_any_case() {
        let store = Store::new();
        let fact = store.applied().await;
        let b = store.node("b", &[NEW, OLD]);
        let own = b.facts.node().clone();
        // Its copy of the first one cannot be put, what the fleet runs is not there.
        let in_the_way = store.path(&fact.earlier[2].copy_by(&own));
        std::fs::create_dir_all(&in_the_way).unwrap();
        let there = std::fs::read(store.path(&fact.now.key())).unwrap();
        std::fs::remove_file(store.path(&fact.now.key())).unwrap();
        let mut anew = AnewSealing::default();
        assert_eq!(anew.step(&b, &fact).await, TRY_AGAIN);
        let told = b.facts.told_faults().concat();
        assert!(told.starts_with("version 4 of the fleet's config is not sealed by"), "{told}");
        assert!(told.ends_with("apply it once more (mcpproxy fleet apply)"), "{told}");
        assert!(anew.lost.is_empty() && anew.sealed.len() == 2, "{anew:?}");
        assert!(anew.step(&b, &fact).await <= TRY_AGAIN, "it is not time");
        std::fs::write(store.path(&fact.now.key()), there).unwrap();
        anew.due = None;
        assert_eq!(anew.step(&b, &fact).await, TRY_AGAIN * 2);
        let told = b.facts.told_faults().concat();
        assert!(told.starts_with("version 1 of the fleet's config is not sealed by"), "{told}");
        std::fs::remove_dir(&in_the_way).unwrap();
        anew.due = None;
        assert_eq!(anew.step(&b, &fact).await, Duration::MAX);
        assert_eq!(b.facts.told_faults(), [""; 0]);
    }

    #[tokio::test]
    async fn in_another_store_nothing_is_taken_for_gone() {
        let store = Store::new();
        let fact = store.applied().await;
        let b = store.node("b", &[NEW, OLD]);
        let mut anew = AnewSealing::default();
        let (here, aside) = (store.path(""), store.0.path().join("aside"));
        std::fs::rename(&here, &aside).unwrap();
        std::fs::create_dir(&here).unwrap();
        assert_eq!(anew.step(&b, &fact).await, TRY_AGAIN);
        let told = b.facts.told_faults().concat();
        assert!(told.contains("it is not the one in which this node has its place"), "{told}");
        std::fs::remove_dir(&here).unwrap();
        std::fs::rename(&aside, &here).unwrap();
        anew.due = None;
        assert_eq!(anew.step(&b, &fact).await, Duration::MAX);
        assert_eq!((anew.sealed.len(), anew.lost.len()), (4, 0));
    }
}
