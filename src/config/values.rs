//! Everything that the operator decides, as one checked value, and what each part of the proxy is made of.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::sections::{ApiKey, Logging, OutputValidation, ResultLimitSection};
use super::servers::ServerEntry;
use super::telemetry::TelemetrySection;
use super::tls::TlsFiles;
use super::written::Written;
use crate::activity;
use crate::approvals;
use crate::catalog::{self, ServerSettings};
use crate::downstream::session_ticket::TicketOffice;
use crate::embeddings::SearchSection;
use crate::fleet::bucket;
use crate::fleet::cluster_key::{KEY_ID_BYTES, KeyPurpose};
use crate::fleet::config::AdvertisedUrl;
use crate::fleet::sealed_id::IdKeys;
use crate::fleet::sealed_mark::NodeTag;
use crate::fleet::{ClusterConfig, LedgerSettings};
use crate::identity;
use crate::intent;
use crate::io::address::Address;
use crate::mcp::revisions::Offered;
use crate::policy::host_check::{BadEntry, HostCheck};
use crate::policy::rules::{Preset, RuleOptions, RulesDefault};
use crate::policy::{self, CallLimits, HttpAuth, limits};
use crate::proxy::memory_budget;
use crate::proxy::settings::Settings;
use crate::tool::InputPolicy;
use crate::upstream::{ServerAffinity, ServerTls, WithheldVariables};

/// Everything the operator decides, checked.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where the HTTP faces listen.
    pub listen: Address,
    /// `tls`; `None`: without TLS.
    pub tls: Option<TlsFiles>,
    /// Where catalog, activity and logins are kept.
    pub data_dir: PathBuf,
    /// What `/api/v1` and `/events` ask for; `None` until one is made.
    pub api_key: Option<ApiKey>,
    /// Whether `/mcp` asks for the key too.
    pub require_mcp_auth: bool,
    /// Hosts that requests may name; empty: the loopback names.
    pub allowed_hosts: Vec<String>,
    /// Origins that requests may come from; empty: the loopback names.
    pub allowed_origins: Vec<String>,
    /// The upstreams, enabled or not, in the order of their names.
    pub servers: Vec<ServerEntry>,
    /// Results of `retrieve_tools` that states no limit of its own, 1 to 100.
    pub tools_limit: usize,
    /// The revisions that a client is offered that asks for them.
    pub offered_era: Offered,
    /// `intent_declaration`
    pub intent: intent::Settings,
    /// `limits`; those of a server are with it.
    pub limits: limits::Config,
    /// `output_validation`
    pub output: OutputValidation,
    /// `input_validation`
    pub input: InputPolicy,
    /// `result_limit`; those of servers and tools are with them.
    pub result_limit: ResultLimitSection,
    /// `search`
    pub search: SearchSection,
    /// `approval`
    pub approval: approvals::Config,
    /// `catalog`
    pub catalog_review: catalog::on_change::ReviewSettings,
    /// `activity`
    pub activity: activity::Config,
    /// `cluster`
    pub cluster: ClusterConfig,
    /// `auth.jwt`
    pub jwt: Option<identity::Settings>,
    /// `policy`
    pub rules: RuleFiles,
    /// `logging`
    pub logging: Logging,
    /// `telemetry`
    pub telemetry: TelemetrySection,
    /// The program that ends the servers' processes if this one is killed; `None`: they stay.
    pub reaper: Option<PathBuf>,
    /// The files that hold values of it, at most 1000.
    pub named_files: Vec<PathBuf>,
    /// The variables that what makes whoever has it us is read of.
    pub own_variables: BTreeSet<String>,
    /// The fleet's config that it is of, by its hash; `None` where it is the node's own file alone.
    pub fleet_config: Option<Box<str>>,
    /// The text that it was read of, for what is told of a change.
    pub written: Written,
}

/// Which rules there are, and how they are put in force. What is in the files is read by whoever starts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleFiles {
    /// `policy.files`, from the folder of the config file where they are not whole paths.
    pub files: Vec<PathBuf>,
    /// `policy.default` and `policy.mode`.
    pub options: RuleOptions,
    /// `policy.presets`
    pub presets: Vec<Preset>,
}

impl RuleFiles {
    /// Whether there is anything that could refuse a request.
    #[must_use]
    pub fn decide_anything(&self) -> bool {
        !self.files.is_empty()
            || !self.presets.is_empty()
            || self.options.default == RulesDefault::Deny
    }
}

impl Config {
    /// The API key; empty until one is made.
    #[must_use]
    pub fn key(&self) -> &str {
        self.api_key.as_ref().map_or("", |key| key.expose())
    }

    /// The files that the servers' sections `tls` name.
    pub fn tls_files_of_servers(&self) -> impl Iterator<Item = &Path> {
        let sections = self.servers.iter().filter_map(|server| server.upstream.tls.as_ref());
        sections.flat_map(ServerTls::files)
    }

    /// Where the activity log is: `data_dir/activity`.
    #[must_use]
    pub fn activity_folder(&self) -> PathBuf {
        self.data_dir.join("activity")
    }

    /// Where the copies of the other nodes' logs are.
    #[must_use]
    pub fn fleet_index_folder(&self) -> PathBuf {
        self.data_dir.join("fleet").join("index")
    }

    /// What the node's ledger is made of, with `data_dir/fleet`; `None` where there is no fleet.
    #[must_use]
    pub fn ledger(&self) -> Option<LedgerSettings> {
        LedgerSettings::of(&self.cluster, self.data_dir.join("fleet"))
    }

    /// What seals the ids of sessions so that any node of the fleet opens them; `None` without a fleet or without its key, where
    /// they are known to their node alone.
    #[must_use]
    pub fn ticket_office(&self) -> Option<TicketOffice> {
        let (_, node) = self.cluster.membership()?;
        let keys = self.cluster.key.as_ref()?.derive(KeyPurpose::Session);
        Some(TicketOffice::new(IdKeys::of(&keys), NodeTag::of(node)))
    }

    /// What makes request states that any node of the fleet knows, each with its name, the one that makes new ones first; `None`
    /// without a fleet or without its key, where they are known to their process alone.
    #[must_use]
    pub fn approval_keys(&self) -> Option<Vec<([u8; KEY_ID_BYTES], [u8; 32])>> {
        self.cluster.membership()?;
        let keys = self.cluster.key.as_ref()?.derive(KeyPurpose::Approval);
        Some(keys.all().map(|key| (key.id(), *key.expose())).collect())
    }

    /// Where what servers say on stderr is kept: `data_dir/stderr`.
    #[must_use]
    pub fn stderr_folder(&self) -> PathBuf {
        self.data_dir.join("stderr")
    }

    /// Where results are kept that are too long for an agent: `data_dir/results`.
    #[must_use]
    pub fn results_folder(&self) -> PathBuf {
        self.data_dir.join("results")
    }

    /// Where vectors of tools are kept: `data_dir/embeddings`.
    #[must_use]
    pub fn embeddings_folder(&self) -> PathBuf {
        self.data_dir.join("embeddings")
    }

    /// Whether the results of any tool have a limit.
    #[must_use]
    pub fn keeps_results(&self) -> bool {
        let limit = self.result_limit.limit();
        let mut enabled = self.servers.iter().filter(|server| server.upstream.enabled);
        enabled.any(|server| server.tools.result_limit.limit_any(limit))
    }

    /// What the catalog needs: the enabled servers, and `data_dir/catalog`.
    #[must_use]
    pub fn catalog(&self) -> catalog::Settings {
        let enabled = self.servers.iter().filter(|server| server.upstream.enabled);
        let settings = enabled.map(|server| (Arc::clone(&server.name), server.tools.clone()));
        catalog::Settings {
            policy: self.output.policy(),
            input: self.input,
            result_limit: self.result_limit.limit(),
            schemas: self.output.schemas(),
            servers: settings.collect::<BTreeMap<_, ServerSettings>>(),
            review: self.catalog_review,
            folder: Some(self.data_dir.join("catalog")),
        }
    }

    /// What requests are decided by, but for the rules: their files are read by whoever starts.
    ///
    /// # Errors
    ///
    /// An entry of `allowed_hosts` or `allowed_origins` that was not read by [`parse`](super::parse()).
    pub fn settings(&self) -> Result<Settings, BadEntry> {
        let host_check = HostCheck::new(&self.allowed_hosts, &self.allowed_origins)?;
        let own = self.cluster.advertise.as_ref().map(AdvertisedUrl::authority);
        Ok(Settings {
            http_auth: HttpAuth {
                api_key: self.key().into(),
                require_mcp_auth: self.require_mcp_auth,
                // By the name that it has in its fleet a node is asked for its numbers.
                host_check: own.into_iter().fold(host_check, HostCheck::with_host),
            },
            policy: policy::Settings {
                intent: self.intent,
                limits: Arc::new(self.limits()),
                ..policy::Settings::default()
            },
            approval: self.approval.clone(),
            tools_limit: self.tools_limit,
            offered_era: self.offered_era,
            max_series: self.telemetry.max_series,
            traces: self.telemetry.otlp_endpoint.as_ref().map(|_| self.telemetry.traces_ratio),
            max_payload_bytes: self.activity.max_payload_bytes,
            max_response_bytes: self.activity.max_response_bytes,
            receipts: self.activity.receipts,
            kept_results: self.keeps_results().then(|| self.result_limit.bounds()),
            session_servers: self.session_servers(),
            held: self.held(),
            judging_budget: self.judging_budget(),
        })
    }

    /// The same after those of an earlier config: what is counted and held under those goes on where both say the same.
    ///
    /// # Errors
    ///
    /// As [`Self::settings`].
    pub fn settings_after(&self, before: &Settings) -> Result<Settings, BadEntry> {
        let settings = self.settings()?;
        let limits = before.policy.limits.next(&self.limits, self.limited_servers());
        Ok(Settings {
            policy: policy::Settings { limits: Arc::new(limits), ..settings.policy },
            held: before.held.next(settings.held),
            judging_budget: before.judging_budget.next(settings.judging_budget),
            ..settings
        })
    }

    /// What goes out at a time and how often.
    fn limits(&self) -> CallLimits {
        CallLimits::new(&self.limits, self.limited_servers())
    }

    fn limited_servers(&self) -> impl Iterator<Item = (Arc<str>, limits::ServerConfig)> + use<'_> {
        let servers = self.servers.iter().filter(|server| server.upstream.enabled);
        let of = |server: &ServerEntry| {
            let upstream = &server.upstream;
            let concurrent = upstream.limits.concurrent.or(upstream.max_concurrent);
            (Arc::clone(&server.name), limits::ServerConfig { concurrent, ..upstream.limits })
        };
        servers.map(of)
    }

    /// Those that keep something between the calls of a session.
    fn session_servers(&self) -> BTreeSet<Arc<str>> {
        let enabled = self.servers.iter().filter(|server| server.upstream.enabled);
        let kept = enabled.filter(|server| server.upstream.affinity == ServerAffinity::Session);
        kept.map(|server| Arc::clone(&server.name)).collect()
    }

    /// The memory budget of answers that strict holds.
    fn held(&self) -> memory_budget::MemoryBudget {
        let OutputValidation { max_held_total_bytes: total, max_held_bytes, .. } = self.output;
        let enabled = self.servers.iter().filter(|server| server.upstream.enabled);
        let names: Vec<Arc<str>> = enabled.map(|server| Arc::clone(&server.name)).collect();
        let usual = || memory_budget::usual_share(total, names.len(), max_held_bytes);
        let share = self.output.held_share_bytes.unwrap_or_else(usual);
        memory_budget::MemoryBudget::new(total, share, names)
    }

    /// The memory budget of answers that warn has yet to judge: one for all servers.
    fn judging_budget(&self) -> memory_budget::MemoryBudget {
        let total = memory_budget::MAX_JUDGING_BYTES.min(self.output.max_held_total_bytes);
        memory_budget::MemoryBudget::new(total, 0, [])
    }

    /// What servers that are started do not get of our environment, beside what none gets.
    #[must_use]
    pub fn withheld_variables(&self) -> WithheldVariables {
        let prefixes = match self.cluster.membership() {
            Some((store, _)) => bucket::credential_variables(store),
            // Whoever has credentials in the environment has them for servers.
            None => &[],
        };
        WithheldVariables { names: self.own_variables.clone(), prefixes }
    }

    /// All values that must not be repeated in a server's words. What one server is given, another may
    /// repeat.
    pub fn secrets(&self) -> impl Iterator<Item = String> {
        let of_servers = self.servers.iter().flat_map(|server| server.upstream.secrets());
        let of_webhook =
            self.approval.webhook.iter().flat_map(|it| [it.url.clone(), it.secret.clone()]);
        let of_search = self.search.embeddings.iter().filter_map(|it| it.api_key.clone());
        // One that names where the key is is no secret.
        let of_search = of_search.filter(|key| !key.contains("${"));
        let of_cluster = self.cluster.key.iter().flat_map(|keys| keys.texts().map(str::to_owned));
        let own = [self.key().to_owned()].into_iter().chain(of_cluster);
        of_servers.chain(own).chain(of_webhook).chain(of_search)
    }
}
