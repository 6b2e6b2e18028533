//! Storage of the fleet's configs: reads a version from any node's copy and under any key, and re-encrypts all versions after a change of
//! `cluster.key`.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::super::shared_facts::SharedFacts;
use mcpproxy_admin::api::config_handle::{ReloadRefused, ShownProblem};
use mcpproxy_config::fleet_config::SharedConfig;
use mcpproxy_fleet::bucket::BucketError;
use mcpproxy_fleet::facts::{CONFIGS, ConfigFact, ConfigVersion, FactFault};
use mcpproxy_runtime::io::line_budget::{LinePeer, peer_line};

/// Name of the re-encryption in reported faults.
const SEALED_PART: &str = "config key";
/// Timeout for listing the copies of a config.
const LIST_LIMIT: Duration = Duration::from_secs(10);
/// Timeout and retry interval of a new node for fetching the config at startup.
const FETCH_AT_START: Duration = Duration::from_secs(15);
const FETCH_AGAIN: Duration = Duration::from_millis(500);
/// Retry interval for fetching a config.
pub(super) const RETRY_INTERVAL: Duration = Duration::from_secs(2);
/// Maximum retry interval of the re-encryption, which lists all copies each time.
const MAX_SEAL_INTERVAL: Duration = Duration::from_secs(300);

/// Reason why a config is not applied.
#[derive(Debug)]
pub(super) enum NotTaken {
    /// The config is invalid on this node.
    Refused(ReloadRefused),
    /// The config could not be fetched.
    Store(BucketError),
    /// The config could not be decrypted: it was altered, or encrypted with a key that this node does not have.
    Unopened(BucketError),
}

impl NotTaken {
    /// Whether a retry may succeed without the config being uploaded again.
    fn is_transient(&self) -> bool {
        let is_gone = |error: &BucketError| {
            matches!(error, BucketError::Missing(_) | BucketError::TooLong(_))
        };
        match self {
            Self::Refused(_) | Self::Unopened(_) => false,
            Self::Store(error) => !is_gone(error),
        }
    }

    fn text(&self) -> String {
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

/// Re-encryption of the current and earlier versions with the newest key, as long as `cluster.key` also lists older keys, which nodes that
/// join later do not have.
///
/// It has to succeed for the current version. An earlier version that is missing or cannot be decrypted is reported once and skipped: it
/// cannot be rolled back to in any case, and does not prevent the operator from removing the older key.
#[derive(Debug, Default)]
pub(super) struct Resealing {
    /// The current version when this state was created.
    version: Option<ConfigVersion>,
    /// Whether all versions are re-encrypted.
    is_done: bool,
    /// Hashes of re-encrypted versions, and of those whose contents do not match their name.
    sealed: BTreeSet<String>,
    /// Hashes of versions that can no longer be re-encrypted.
    lost: BTreeSet<String>,
    /// Time of the next attempt, and the pause before it.
    due: Option<Instant>,
    pause: Duration,
}

impl Resealing {
    /// Continues if an attempt is due. Returns the time until the next attempt.
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
        shared.facts.report_fault(SEALED_PART, fault);
        if self.is_done {
            return Duration::MAX;
        }
        self.pause = (self.pause * 2).clamp(RETRY_INTERVAL, MAX_SEAL_INTERVAL);
        self.due = Instant::now().checked_add(self.pause);
        self.pause
    }

    /// Re-encrypts the remaining versions. Returns the first error that has to be retried.
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
            let (number, is_transient) = (version.version, error.is_transient());
            let is_late = matches!(error, NotTaken::Store(BucketError::Late(_)));
            // If the store does not belong to this fleet, missing objects prove nothing.
            let elsewhere = match is_transient {
                true => None,
                false => shared.facts.check_place(&shared.bucket).await.err(),
            };
            if !is_now && !is_transient && elsewhere.is_none() {
                let why = error.text();
                peer_line!(
                    warn,
                    LinePeer::Part("fleet config"),
                    version = number,
                    why,
                    "an earlier version of the fleet's config can no longer be rolled back to"
                );
                self.lost.insert(version.hash.clone());
                continue;
            }
            let may_pass = is_transient || elsewhere.is_some();
            let why = elsewhere.map_or_else(|| error.text(), |error| error.to_string());
            let help = if may_pass { "" } else { "; apply it again (mcpproxy fleet apply)" };
            let fault = format!(
                "version {number} of the fleet's config is not sealed by the newest cluster.key yet: {why}{help}"
            );
            failed = failed.and(Err(fault));
            // If the store is unreachable, the other versions are not tried.
            if is_now && may_pass || is_late {
                break;
            }
        }
        failed
    }
}

/// The current version and the earlier ones.
fn versions(fact: &ConfigFact) -> impl Iterator<Item = &ConfigVersion> {
    std::iter::once(&fact.now).chain(&fact.earlier)
}

/// Uploads a copy of a version encrypted with the newest key, unless one exists.
async fn seal_version(shared: &SharedFacts, version: &ConfigVersion) -> Result<(), NotTaken> {
    let SharedFacts { facts, bucket } = shared;
    match fetch_opened(shared, version).await {
        Ok((_, true)) | Err(NotTaken::Refused(_)) => Ok(()),
        Ok((config, false)) => {
            let copy = version.copy_by(facts.node());
            let put = facts.put_sealed(bucket, &copy, &config.write()).await;
            // A failed upload is not a missing config.
            put.map_err(|error| NotTaken::Store(BucketError::Failed(error.to_string())))
        }
        Err(error) => Err(error),
    }
}

/// Fetches the config of a version and verifies its hash.
pub(super) async fn fetch(
    shared: &SharedFacts,
    version: &ConfigVersion,
) -> Result<SharedConfig, NotTaken> {
    fetch_opened(shared, version).await.map(|(config, _)| config)
}

/// Fetches the config of a version, from the original or a re-encrypted copy, and returns whether it is encrypted with the newest key.
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
        // The copies cannot be listed, but they may exist.
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

/// Prefers a transient error of copies to a permanent error of the original.
fn or_later<T>(found: Result<T, NotTaken>, later: NotTaken) -> Result<T, NotTaken> {
    match found {
        Err(never) if !never.is_transient() && later.is_transient() => Err(later),
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
        Err(whole("its contents do not match its name").into())
    }
}

/// Fetches the config of a version, with retries.
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

/// All errors in one line, for readers on other machines.
pub(super) fn reasons(refused: &ReloadRefused) -> String {
    let errors = refused.problems.iter().filter(|it| it.severity == "error");
    errors.map(ShownProblem::line).collect::<Vec<_>>().join("; ")
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
    use mcpproxy_fleet::bucket::Bucket;
    use mcpproxy_fleet::facts::{FactExchangeSettings, FactKeys, FleetFacts, NodeName};
    use mcpproxy_fleet::node_state::FleetId;

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

        /// A joined node with these keys.
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

        /// Four versions applied by a node that has only the older key.
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
    async fn missing_earlier_configs_do_not_block_resealing_of_others() {
        let store = Store::new();
        let fact = store.applied().await;
        let [third, second, first] = [0, 1, 2].map(|at| &fact.earlier[at]);
        std::fs::remove_file(store.path(&third.key())).unwrap();
        store.put(&second.key(), "no config");
        let b = store.node("b", &[NEW, OLD]);
        let mut resealing = Resealing::default();
        assert_eq!(resealing.step(&b, &fact).await, Duration::MAX);
        assert_eq!(b.facts.reported_faults(), [""; 0]);
        assert_eq!(resealing.lost.len(), 2);
        let c = store.node("c", &[NEW]);
        for (version, is_had) in [(&fact.now, true), (third, false), (second, false), (first, true)]
        {
            assert_eq!(fetch(&c, version).await.is_ok(), is_had, "{}", version.version);
        }
        // The store is not accessed once all versions are re-encrypted.
        std::fs::remove_dir_all(store.path(CONFIGS)).unwrap();
        assert_eq!(resealing.step(&b, &fact).await, Duration::MAX);
    }

    #[tokio::test]
    async fn transient_errors_are_retried_with_backoff() {
        let store = Store::new();
        let fact = store.applied().await;
        let b = store.node("b", &[NEW, OLD]);
        let own = b.facts.node().clone();
        // Its copy of the first version cannot be uploaded, and the current version is missing.
        let in_the_way = store.path(&fact.earlier[2].copy_by(&own));
        std::fs::create_dir_all(&in_the_way).unwrap();
        let there = std::fs::read(store.path(&fact.now.key())).unwrap();
        std::fs::remove_file(store.path(&fact.now.key())).unwrap();
        let mut resealing = Resealing::default();
        assert_eq!(resealing.step(&b, &fact).await, RETRY_INTERVAL);
        let faults = b.facts.reported_faults().concat();
        assert!(faults.starts_with("version 4 of the fleet's config is not sealed by"), "{faults}");
        assert!(faults.ends_with("apply it again (mcpproxy fleet apply)"), "{faults}");
        assert!(resealing.lost.is_empty() && resealing.sealed.len() == 2, "{resealing:?}");
        assert!(resealing.step(&b, &fact).await <= RETRY_INTERVAL, "no retry is due");
        std::fs::write(store.path(&fact.now.key()), there).unwrap();
        resealing.due = None;
        assert_eq!(resealing.step(&b, &fact).await, RETRY_INTERVAL * 2);
        let faults = b.facts.reported_faults().concat();
        assert!(faults.starts_with("version 1 of the fleet's config is not sealed by"), "{faults}");
        std::fs::remove_dir(&in_the_way).unwrap();
        resealing.due = None;
        assert_eq!(resealing.step(&b, &fact).await, Duration::MAX);
        assert_eq!(b.facts.reported_faults(), [""; 0]);
    }

    #[tokio::test]
    async fn missing_objects_in_a_foreign_store_are_not_lost() {
        let store = Store::new();
        let fact = store.applied().await;
        let b = store.node("b", &[NEW, OLD]);
        let mut resealing = Resealing::default();
        let (here, aside) = (store.path(""), store.0.path().join("aside"));
        std::fs::rename(&here, &aside).unwrap();
        std::fs::create_dir(&here).unwrap();
        assert_eq!(resealing.step(&b, &fact).await, RETRY_INTERVAL);
        let faults = b.facts.reported_faults().concat();
        assert!(faults.contains("not the store that this node joined"), "{faults}");
        std::fs::remove_dir(&here).unwrap();
        std::fs::rename(&aside, &here).unwrap();
        resealing.due = None;
        assert_eq!(resealing.step(&b, &fact).await, Duration::MAX);
        assert_eq!((resealing.sealed.len(), resealing.lost.len()), (4, 0));
    }
}
