//! The validated config, and the settings of each part derived from it.

use crate::fleet_config::SharedFile;
use crate::sections::{
    ApiKey, Logging, OutputValidation, ResultLimitSection, TelemetrySection, TlsFiles,
};
use crate::servers::ServerEntry;
use crate::written::Written;
use mcpproxy_activity as activity;
use mcpproxy_catalog as catalog;
use mcpproxy_catalog::ServerSettings;
use mcpproxy_catalog::embeddings::SearchSection;
use mcpproxy_downstream::session_ticket::TicketOffice;
use mcpproxy_fleet::cluster_key::{IdKeys, KEY_ID_BYTES, KeyPurpose};
use mcpproxy_fleet::config::AdvertisedUrl;
use mcpproxy_fleet::node_state::NodeTag;
use mcpproxy_fleet::{ClusterConfig, LedgerSettings, bucket};
use mcpproxy_gateway::proxy::memory_budget;
use mcpproxy_gateway::proxy::settings::{Settings, StreamTiming};
use mcpproxy_policy as policy;
use mcpproxy_policy::host_check::{BadEntry, HostCheck};
use mcpproxy_policy::rules::{Preset, RuleOptions, RulesDefault};
use mcpproxy_policy::tool::InputPolicy;
use mcpproxy_policy::{CallLimits, HttpAuth, approvals, identity, intent, limits};
use mcpproxy_protocol::mcp::revisions::Offered;
use mcpproxy_runtime::io::address::Address;
use mcpproxy_runtime::io::egress_proxy::EgressEnvironment;
use mcpproxy_upstream::{ServerAffinity, ServerTls, WithheldVariables};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The validated config.
#[derive(Clone, Debug)]
pub struct Config {
    /// Listen address of the HTTP endpoints.
    pub listen: Address,
    /// Files of the section `tls`; `None` disables TLS.
    pub tls: Option<TlsFiles>,
    /// Directory for catalog, activity and logins.
    pub data_dir: PathBuf,
    /// API key of `/api/v1` and `/events`; `None` until one is generated.
    pub api_key: Option<ApiKey>,
    /// Whether `/mcp` requires the key, too.
    pub require_mcp_auth: bool,
    /// Accepted `Host` values; empty: the loopback names.
    pub allowed_hosts: Vec<String>,
    /// Accepted `Origin` values; empty: the loopback names.
    pub allowed_origins: Vec<String>,
    /// The upstreams, enabled or not, ordered by name.
    pub servers: Vec<ServerEntry>,
    /// Default number of results of `retrieve_tools`, 1 to 100.
    pub tools_limit: usize,
    /// Settings `stream_after` and `keepalive`.
    pub streams: StreamTiming,
    /// Protocol revisions offered in discovery.
    pub offered_era: Offered,
    /// Settings of `intent_declaration`.
    pub intent: intent::Settings,
    /// Settings of `limits`; a server's own limits are part of its entry.
    pub limits: limits::Config,
    /// Settings of `output_validation`.
    pub output: OutputValidation,
    /// Settings of `input_validation`.
    pub input: InputPolicy,
    /// Settings of `result_limit`; the limits of servers and tools are part of their entries.
    pub result_limit: ResultLimitSection,
    /// Settings of `search`.
    pub search: SearchSection,
    /// Settings of `approval`.
    pub approval: approvals::Config,
    /// Settings of `catalog`.
    pub catalog_review: catalog::grade::ReviewSettings,
    /// Settings of `activity`.
    pub activity: activity::Config,
    /// Settings of `cluster`.
    pub cluster: ClusterConfig,
    /// Settings of `auth.jwt`.
    pub jwt: Option<identity::Settings>,
    /// Settings of `policy`.
    pub rules: RuleFiles,
    /// Settings of `logging`.
    pub logging: Logging,
    /// Settings of `telemetry`.
    pub telemetry: TelemetrySection,
    /// Program that terminates the servers' processes if this one is killed; `None` leaves them running.
    pub reaper: Option<PathBuf>,
    /// Files that hold referenced values, at most 1000.
    pub named_files: Vec<PathBuf>,
    /// Environment variables that hold credentials for admin or node access.
    pub own_variables: BTreeSet<String>,
    /// All environment variables named in the config.
    pub named_variables: BTreeSet<String>,
    /// Hash of the fleet's config in force; `None` if the node uses its own file.
    pub fleet_config: Option<Box<str>>,
    /// The config as written, for the audit record of a change.
    pub written: Written,
}

/// Configured rules and their enforcement. The files are read at startup.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleFiles {
    /// `policy.files`, relative to the config file's directory.
    pub files: Vec<PathBuf>,
    /// Files contained in the fleet's config, in place of `files`.
    pub shared: Vec<SharedFile>,
    /// Settings `policy.default` and `policy.mode`.
    pub options: RuleOptions,
    /// Built-in rule sets of `policy.presets`.
    pub presets: Vec<Preset>,
}

impl RuleFiles {
    /// Whether any rule could refuse a request.
    pub fn decide_anything(&self) -> bool {
        !self.files.is_empty()
            || !self.shared.is_empty()
            || !self.presets.is_empty()
            || self.options.default == RulesDefault::Deny
    }
}

impl Config {
    /// The API key; empty until one is generated.
    pub fn key(&self) -> &str {
        self.api_key.as_ref().map_or("", |key| key.expose())
    }

    /// Files named in the servers' `tls` sections.
    pub fn tls_files_of_servers(&self) -> impl Iterator<Item = &Path> {
        let sections = self.servers.iter().filter_map(|server| server.upstream.tls.as_ref());
        sections.flat_map(ServerTls::files)
    }

    /// Directory of the activity log: `data_dir/activity`.
    pub fn activity_folder(&self) -> PathBuf {
        self.data_dir.join("activity")
    }

    /// Directory of the copies of other nodes' logs.
    pub fn fleet_index_folder(&self) -> PathBuf {
        self.data_dir.join("fleet").join("index")
    }

    /// Settings of the node's ledger in `data_dir/fleet`; `None` without a fleet.
    pub fn ledger(&self) -> Option<LedgerSettings> {
        LedgerSettings::of(&self.cluster, self.data_dir.join("fleet"))
    }

    /// Keys that seal session ids so that every node of the fleet can open them; `None` without a fleet key.
    pub fn ticket_office(&self) -> Option<TicketOffice> {
        let (_, node) = self.cluster.membership()?;
        let keys = self.cluster.key.as_ref()?.derive(KeyPurpose::Session);
        Some(TicketOffice::new(IdKeys::of(&keys), NodeTag::of(node)))
    }

    /// Keys for request states that every node of the fleet can verify, with their ids, the signing key first; `None`
    /// without a fleet key.
    pub fn approval_keys(&self) -> Option<Vec<([u8; KEY_ID_BYTES], [u8; 32])>> {
        self.cluster.membership()?;
        let keys = self.cluster.key.as_ref()?.derive(KeyPurpose::Approval);
        Some(keys.all().map(|key| (key.id(), *key.expose())).collect())
    }

    /// Directory of the servers' stderr output: `data_dir/stderr`.
    pub fn stderr_folder(&self) -> PathBuf {
        self.data_dir.join("stderr")
    }

    /// Directory of withheld results: `data_dir/results`.
    pub fn results_folder(&self) -> PathBuf {
        self.data_dir.join("results")
    }

    /// Directory of tool embeddings: `data_dir/embeddings`.
    pub fn embeddings_folder(&self) -> PathBuf {
        self.data_dir.join("embeddings")
    }

    /// Whether any tool has a result limit.
    pub fn keeps_results(&self) -> bool {
        let limit = self.result_limit.limit();
        let mut enabled = self.servers.iter().filter(|server| server.upstream.enabled);
        enabled.any(|server| server.tools.result_limit.limit_any(limit))
    }

    /// Settings of the catalog: the enabled servers, and `data_dir/catalog`.
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

    /// Settings of request handling, without the rules, whose files are read at startup.
    pub fn settings(&self) -> Result<Settings, BadEntry> {
        let host_check = HostCheck::new(&self.allowed_hosts, &self.allowed_origins)?;
        let own = self.cluster.advertise.as_ref().map(AdvertisedUrl::authority);
        Ok(Settings {
            http_auth: HttpAuth {
                api_key: self.key().into(),
                require_mcp_auth: self.require_mcp_auth,
                // Other nodes of the fleet use the advertised name to fetch metrics.
                host_check: own.into_iter().fold(host_check, HostCheck::with_host),
            },
            policy: policy::Settings {
                intent: self.intent,
                limits: Arc::new(self.limits()),
                ..policy::Settings::default()
            },
            approval: self.approval.clone(),
            tools_limit: self.tools_limit,
            streams: self.streams,
            held_timeout: self.limits.held_timeout,
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

    /// Settings that continue the counters and budgets of an earlier config where both agree.
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

    /// Concurrency and rate limits of calls.
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

    /// Servers with session affinity.
    fn session_servers(&self) -> BTreeSet<Arc<str>> {
        let enabled = self.servers.iter().filter(|server| server.upstream.enabled);
        let kept = enabled.filter(|server| server.upstream.affinity == ServerAffinity::Session);
        kept.map(|server| Arc::clone(&server.name)).collect()
    }

    /// Memory budget of results held by strict mode.
    fn held(&self) -> memory_budget::MemoryBudget {
        let OutputValidation { max_held_total_bytes: total, max_held_bytes, .. } = self.output;
        let enabled = self.servers.iter().filter(|server| server.upstream.enabled);
        let names: Vec<Arc<str>> = enabled.map(|server| Arc::clone(&server.name)).collect();
        let usual = || memory_budget::usual_share(total, names.len(), max_held_bytes);
        let share = self.output.held_share_bytes.unwrap_or_else(usual);
        memory_budget::MemoryBudget::new(total, share, names)
    }

    /// Memory budget of results that warn mode has not judged yet, shared by all servers.
    fn judging_budget(&self) -> memory_budget::MemoryBudget {
        let total = memory_budget::MAX_JUDGING_BYTES.min(self.output.max_held_total_bytes);
        memory_budget::MemoryBudget::new(total, 0, [])
    }

    /// Environment variables withheld from the servers' processes, besides the built-in ones.
    pub fn withheld_variables(&self) -> WithheldVariables {
        let prefixes = match self.cluster.membership() {
            Some((store, _)) => bucket::credential_variables(store),
            // Without a fleet, mcpproxy needs no storage credentials, so those in the environment are meant for
            // servers.
            None => &[],
        };
        WithheldVariables {
            names: self.own_variables.clone(),
            named: self.named_variables.clone(),
            prefixes,
        }
    }

    /// Values to redact from servers' output. One server may output a secret of another.
    pub fn secrets(&self) -> impl Iterator<Item = String> {
        let of_servers = self.servers.iter().flat_map(|server| server.upstream.secrets());
        let of_webhook =
            self.approval.webhook.iter().flat_map(|it| [it.url.clone(), it.secret.clone()]);
        let of_search = self.search.embeddings.iter().filter_map(|it| it.api_key.clone());
        // An API key that is a reference is not itself a secret.
        let of_search = of_search.filter(|key| !key.contains("${"));
        let of_cluster = self.cluster.key.iter().flat_map(|keys| keys.texts().map(str::to_owned));
        let own = [self.key().to_owned()].into_iter().chain(of_cluster);
        let proxies = EgressEnvironment::of_process().proxies().map(|(_, proxy)| proxy);
        let of_proxies = proxies.flatten().flat_map(|proxy| proxy.secrets().to_vec());
        of_servers.chain(own).chain(of_webhook).chain(of_search).chain(of_proxies)
    }
}
