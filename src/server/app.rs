//! Lifecycle of a proxy: opens its components, listens, and closes everything in order.
//!
//! There are also variants that do not listen: to try out servers, and to answer queries of a log that no process has
//! open.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use futures_util::future::join_all;
use tokio::runtime::Runtime;
use tokio::sync::watch;

use super::app_state::{AppState, WrongProtocolWarnings};
use super::connection_limit::ConnectionSlots;
use super::embeddings::EmbeddingTasks;
use super::fleet::{FleetEntry, FleetTasks};
use super::listener::{Listener, ListenerTls, SocketFile};
use super::otlp_export::{OtlpExport, OtlpTargets};
use super::reload::{ConfigSource, Reload};
use super::shutdown::{
    CHILDREN_TIMEOUT, CONTROL_GRACE, DRAIN_TIMEOUT, ForcedShutdown, Signals, WORKER_GRACE,
};
use super::startup::{StartError, cores};
use super::workers::{ShutdownSignals, WorkerEndpoint, WorkerThread, accept, max_connections};
use super::{audit_records, fleet, identity_watch, listener, startup, webhook};
use mcpproxy_activity::record::{Draft, Source, Status, Type};
use mcpproxy_activity::{Activity, StoreError, Writer};
use mcpproxy_admin::api::config_handle::{ConfigHandle, ConfigStanding};
use mcpproxy_admin::{api, page};
use mcpproxy_catalog as catalog;
use mcpproxy_catalog::Catalog;
use mcpproxy_catalog::embeddings::{QueryEmbedder, SearchSection};
use mcpproxy_config::{Config, RuleFiles, rule_files};
use mcpproxy_downstream::session_table;
use mcpproxy_downstream::session_table::Sessions;
use mcpproxy_fleet::FleetNode;
use mcpproxy_fleet::node_state::NodeTag;
use mcpproxy_gateway::node_directory::NodeDirectory;
use mcpproxy_gateway::proxy::builtin::overview::OverviewCache;
use mcpproxy_gateway::proxy::client::DroppedMembers;
use mcpproxy_gateway::proxy::held::calls::HeldCalls;
use mcpproxy_gateway::proxy::memory_budget::RequestBodies;
use mcpproxy_gateway::proxy::session_facts::PrincipalFacts;
use mcpproxy_gateway::proxy::settings::{Settings, SettingsSwap};
use mcpproxy_gateway::proxy::tasks::known::KnownTasks;
use mcpproxy_gateway::proxy::worker::ResultPool;
use mcpproxy_gateway::proxy::worker::ValidationPool;
use mcpproxy_gateway::proxy::{Proxy, log_routing, passthrough};
use mcpproxy_gateway::results;
use mcpproxy_gateway::results::ResultStore;
use mcpproxy_gateway::telemetry::export_queue::export_queue;
use mcpproxy_gateway::telemetry::{Calls, LogHandles};
use mcpproxy_policy::identity::{Identity, JwtVerifier, PAGE_SECRET_BYTES, PageLogins, TokenFile};
use mcpproxy_policy::{StateAccounts, approvals};
use mcpproxy_runtime::io::address::Address;
use mcpproxy_runtime::os::{descriptors, private};
use mcpproxy_upstream::stderr_log;

/// A proxy with its components open, with or without a listener.
#[derive(Debug)]
pub struct App {
    shared: Arc<AppState>,
    control: Runtime,
    writer: Writer,
    drain: watch::Sender<bool>,
    forced: ForcedShutdown,
    /// Maximum number of client connections.
    max_connections: usize,
    /// Forwards notifications of upstreams.
    notifying: tokio::task::JoinHandle<()>,
    /// Fetches and watches JWT keys.
    watching_keys: tokio::task::JoinHandle<()>,
    /// Sends approval events to the webhook.
    webhook: tokio::task::JoinHandle<()>,
    /// Removes expired stored results.
    expiring: tokio::task::JoinHandle<()>,
    /// Ends expired sessions.
    sweeping: tokio::task::JoinHandle<()>,
    /// Watches and reloads config, rules and tokens.
    reloading: tokio::task::JoinHandle<()>,
    /// Tasks that export traces and log lines by OTLP.
    exporting: Vec<OtlpExport>,
    /// Tasks that request embeddings of tools and queries.
    embedding: EmbeddingTasks,
    /// Tasks of a fleet node.
    fleet: Option<FleetTasks>,
}

/// A listening proxy.
#[derive(Debug)]
pub struct Server {
    app: App,
    address: Address,
    tls: Option<Arc<ListenerTls>>,
    /// File of a Unix socket; removed at shutdown.
    file: Option<SocketFile>,
    /// Watches TLS files.
    watching_tls: Option<tokio::task::JoinHandle<()>>,
    worker_threads: Arc<Vec<WorkerThread>>,
    accepting: tokio::task::JoinHandle<()>,
}

/// Settings of the call path, with the rules named by the config.
fn settings_of(config: &Config) -> Result<Settings, StartError> {
    let mut settings = config.settings()?;
    // The reload task reports rules that name missing servers or tools.
    let loaded = rule_files::load(&config.rules, &rule_files::servers(config));
    let loaded = loaded.map_err(|problems| {
        StartError::Rules(problems.into_iter().filter(|problem| problem.is_error()).collect())
    })?;
    settings.policy.rules = loaded.rules.map(Arc::new);
    Ok(settings)
}

/// The upstreams that a proxy starts.
enum StartedUpstreams<'a> {
    All,
    /// Only the upstream with this name, if any.
    Only(Option<&'a str>),
}

impl App {
    /// Opens the components of a proxy and starts its upstreams without waiting for them. `handles` belong to the process's log. The config
    /// is reloaded from `source`, if present.
    pub fn start(
        config: Config,
        handles: LogHandles,
        source: Option<ConfigSource>,
    ) -> Result<Self, StartError> {
        Self::open(config, handles, source, &StartedUpstreams::All)
    }

    /// Opens a proxy for one command, which starts no upstream except `server`. The others count as disabled. Their
    /// tools come from the catalog on disk, which is read before this function returns.
    pub fn start_only(
        config: Config,
        handles: LogHandles,
        server: Option<&str>,
    ) -> Result<Self, StartError> {
        let app = Self::open(config, handles, None, &StartedUpstreams::Only(server))?;
        // Waits for the restoring task, which reports the changes.
        let _ = app.shared.proxy.catalog.restore();
        Ok(app)
    }

    fn open(
        config: Config,
        handles: LogHandles,
        source: Option<ConfigSource>,
        started: &StartedUpstreams<'_>,
    ) -> Result<Self, StartError> {
        let mut settings = settings_of(&config)?;
        let folder = &config.data_dir;
        startup::open_data_folder(folder)
            .map_err(|error| StartError::Folder { folder: folder.clone(), error })?;
        // The limit is raised before the log is opened, because the number of files that the log may open depends on it.
        descriptors::raise();
        FleetEntry::rejoin(&config)?;
        let log = Activity::open(&config.activity_folder(), config.activity.clone())?;
        let entry = FleetEntry::take(&config, &log.0)?;
        let of_fleet = entry.as_ref().map(|entry| entry.config(&config, source.as_ref()));
        let mut config = match of_fleet.transpose()?.flatten() {
            Some(next) => {
                settings = settings_of(&next)?;
                next
            }
            None => config,
        };
        // This process holds the lock on the log, and with it the data folder.
        let folder = config.results_folder();
        results::clean(&folder, config.keeps_results())
            .map_err(|error| StartError::Results { folder, error })?;
        log.0.note(Draft::new(Type::SystemStart, Source::Internal, Status::Success));
        let catalog = config.catalog();
        if let StartedUpstreams::Only(server) = started {
            let others = config.servers.iter_mut().filter(|it| Some(&*it.name) != *server);
            others.for_each(|it| it.upstream.enabled = false);
        }
        let node = entry.as_ref().map(FleetEntry::node);
        let parts = (handles, source.clone());
        let mut app = Self::assemble(&config, settings, log, (catalog, node), parts)?;
        let (shared, runtime) = (&app.shared, app.control.handle());
        app.fleet = entry.map(|entry| entry.start(&config, shared, source, runtime));
        startup::record_orphaned_approvals(&app.shared.proxy.activity, &app.control);
        let (folder, servers) = (config.stderr_folder(), config.servers.clone());
        app.control.spawn_blocking(move || {
            let servers = servers.iter().map(|server| &*server.name);
            stderr_log::forget(&folder, servers, SystemTime::now());
        });
        Ok(app)
    }

    pub(super) fn assemble(
        config: &Config,
        settings: Settings,
        (activity, writer): (Activity, Writer),
        (catalog, fleet): (catalog::Settings, Option<Arc<FleetNode>>),
        (handles, source): (LogHandles, Option<ConfigSource>),
    ) -> Result<Self, StartError> {
        let servers = config.servers.iter().filter(|server| server.upstream.enabled).count();
        let max_connections = max_connections(cores(), servers);
        let control = startup::control_runtime()?;
        let catalog = Arc::new(Catalog::new(catalog));
        if let Some(facts) = fleet.as_deref().and_then(FleetNode::shared) {
            catalog.begin_with(fleet::pins::of_fleet(&facts.facts()));
        }
        startup::restore(&catalog, &activity, &control);
        let upstreams = startup::supervise(config, &catalog, &activity, &control);
        let mut seed = [0; 8];
        getrandom::fill(&mut seed).map_err(io::Error::from)?;
        let identity = Arc::new(Identity::new(
            TokenFile::new(&config.data_dir),
            config.jwt.clone().map(JwtVerifier::new),
        ));
        identity_watch::reload_tokens(&identity);
        let bounds = approvals::QueueBounds::of_log(config.activity.queue_records);
        let (webhook, hook) = watch::channel(config.approval.webhook.clone());
        let (approval_events, webhook_task) = webhook::start(hook, &control);
        let otlp = OtlpTargets::of(&config.telemetry, handles.tap.clone());
        let (spans, ended) = export_queue();
        let instance: Box<str> = format!("{:016x}", u64::from_ne_bytes(seed)).into();
        let mut exporting =
            vec![OtlpExport::start(otlp.traces(), ended, instance.clone(), &control)];
        // Only one proxy per process exports its log.
        if let Some(lines) = handles.tap.receiver() {
            exporting.push(OtlpExport::start(otlp.logs(), lines, instance, &control));
        }
        let approval_queue = approvals::ApprovalQueue::new(bounds, Some(approval_events));
        let approval_queue = match &fleet {
            Some(node) => approval_queue.of_node(&NodeTag::of(&node.name).text()),
            None => approval_queue,
        };
        let approval_queue = Arc::new(match config.approval_keys() {
            Some(keys) => approval_queue.with_shared_states(keys),
            None => approval_queue,
        });
        if let Some(facts) = fleet.as_deref().and_then(FleetNode::shared) {
            fleet::approvals::begin_with(&approval_queue, facts);
        }
        let dropped_members = Arc::new(DroppedMembers::default());
        let (meaning, queries) = QueryEmbedder::new(config.search.embeddings.as_ref());
        let meaning = Arc::new(meaning);
        let folder = config.embeddings_folder();
        let embedding = EmbeddingTasks::start(&meaning, queries, &catalog, folder, &control);
        let proxy = Proxy {
            catalog,
            meaning,
            log_routing: log_routing::LogRouting::of(&upstreams, &dropped_members),
            dropped_members,
            identity,
            upstreams,
            approvals: approval_queue,
            held_calls: Arc::new(HeldCalls::of_log(config.activity.queue_records)),
            known_tasks: KnownTasks::default(),
            settings: SettingsSwap::new(settings),
            principal_facts: Arc::<PrincipalFacts>::default(),
            state_accounts: StateAccounts::default(),
            followed_tasks: Arc::default(),
            activity,
            nodes: NodeDirectory::new(fleet),
            list_cache: passthrough::list_cache::ListCache::default(),
            overview: OverviewCache::default(),
            validation_pool: ValidationPool::new(control.handle().clone(), cores()),
            results: Arc::new(ResultStore::new(config.results_folder())),
            result_pool: ResultPool::new(control.handle().clone()),
            bodies: RequestBodies::default(),
            calls: Calls::default(),
            spans,
            hash_key: u64::from_ne_bytes(seed),
        };
        let proxy = Arc::new(proxy);
        let notifying = control.spawn(passthrough::notifications::follow(Arc::clone(&proxy)));
        let expiring = control.spawn(Arc::clone(&proxy.results).expire_in_time());
        let watching_keys = control.spawn(identity_watch::watch(Arc::clone(&proxy.identity)));
        let path = source.as_ref().map(|source| source.path.display().to_string());
        let (handle, commands) = ConfigHandle::new(ConfigStanding::of(
            &path.unwrap_or_default(),
            config.written.shown(),
        ));
        let reload = Reload {
            proxy: Arc::clone(&proxy),
            handle: handle.clone(),
            commands,
            source,
            in_force: config.clone(),
            webhook,
            otlp,
            log: handles.filter,
        };
        let reloading = control.spawn(reload.run());
        let started = Instant::now();
        let (drain, ending) = watch::channel(false);
        let sessions =
            config.ticket_office().map_or_else(Sessions::default, Sessions::with_tickets);
        let sessions = Arc::new(sessions.charging(proxy.state_accounts.clone()));
        let now_ms = move || u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let identity = Arc::clone(&proxy.identity);
        let sweep = session_table::run(Arc::clone(&sessions), identity, now_ms);
        let sweeping = control.spawn(sweep);
        let shared = AppState {
            proxy,
            api: api::State {
                started,
                ending,
                lines: handles.lines,
                tap: handles.tap,
                config: handle,
                readers: api::ReaderSlots::default(),
                page_logins: PageLogins::default(),
                sessions: Arc::clone(&sessions),
                connections: OnceLock::new(),
                fleet_index: OnceLock::new(),
                certificate: OnceLock::new(),
                fleet_config: OnceLock::new(),
            },
            sessions,
            wrong_protocol: WrongProtocolWarnings::default(),
            started,
        };
        let (shared, forced) = (Arc::new(shared), ForcedShutdown::default());
        Ok(Self {
            shared,
            control,
            writer,
            drain,
            forced,
            max_connections,
            notifying,
            watching_keys,
            webhook: webhook_task,
            expiring,
            sweeping,
            reloading,
            exporting,
            embedding,
            fleet: None,
        })
    }

    /// State from which requests are served.
    pub fn shared(&self) -> &Arc<AppState> {
        &self.shared
    }

    /// Starts to watch for a further signal, which forces the shutdown.
    pub fn force_on_signal(&self) -> ForcedShutdown {
        let proxy = Arc::clone(&self.shared.proxy);
        self.forced.watch(move || proxy.upstreams.kill());
        self.forced.clone()
    }

    /// Starts to serve HTTP on a listener, over TLS if configured.
    pub fn serve(
        self,
        listener: impl Into<Listener>,
        tls: Option<ListenerTls>,
    ) -> Result<Server, StartError> {
        let (listener, tls) = (listener.into(), tls.map(Arc::new));
        self.shared.proxy.approvals.open();
        let address = listener.address()?;
        if let Some(tls) = &tls {
            // Set once, because a proxy listens once.
            let _ = self.shared.api.certificate.set(Arc::clone(tls.health()));
        }
        let worker_threads = (0..cores())
            .map(|number| {
                let (drain, forced) = (self.drain.subscribe(), self.forced.clone());
                let signals = ShutdownSignals { drain, forced };
                let endpoint = WorkerEndpoint { address: address.clone(), tls: tls.clone() };
                WorkerThread::start(Arc::clone(&self.shared), number, endpoint, signals)
            })
            .collect::<io::Result<Vec<_>>>()?;
        let open = worker_threads
            .iter()
            .map(|worker_thread| Arc::clone(&worker_thread.connections))
            .collect();
        let _ = self.shared.api.connections.set(open);
        let worker_threads = Arc::new(worker_threads);
        let (listener, file) = {
            let _control = self.control.enter();
            listener.open()?
        };
        let watching_tls =
            tls.clone().map(|tls| self.control.spawn(listener::watch_tls_files(tls)));
        let slots = ConnectionSlots::new(self.max_connections);
        let accepting = self.control.spawn(accept(listener, Arc::clone(&worker_threads), slots));
        Ok(Server { app: self, address, tls, file, watching_tls, worker_threads, accepting })
    }

    /// Ends the upstreams with their child processes, flushes the log, and closes everything. Returns an error if records could not be
    /// written.
    pub fn close(self) -> Result<(), StoreError> {
        let Self {
            shared,
            control,
            writer,
            forced,
            notifying,
            watching_keys,
            webhook: webhook_task,
            expiring,
            sweeping,
            reloading,
            exporting,
            embedding,
            fleet,
            ..
        } = self;
        // Ended before the upstreams, because a reload may start some.
        reloading.abort();
        let _ = control.block_on(reloading);
        notifying.abort();
        watching_keys.abort();
        embedding.end();
        shared.proxy.approvals.close();
        shared.proxy.held_calls.close();
        webhook_task.abort();
        expiring.abort();
        sweeping.abort();
        let patient = forced.exit_code().is_none();
        let timeout = if patient { CHILDREN_TIMEOUT } else { Duration::ZERO };
        let deadline = Instant::now() + timeout;
        control.block_on(shared.proxy.upstreams.shutdown(deadline));
        let unreported = control.block_on(shared.proxy.catalog.close(deadline));
        // All calls have ended at this point.
        control.block_on(join_all(exporting.into_iter().map(|export| export.end(patient))));
        if !writer.is_read_only() {
            for (server, change) in unreported {
                let entries = audit_records::catalog_changes(&server, &change);
                audit_records::put(&shared.proxy.activity, entries);
            }
            let stop = Draft::new(Type::SystemStop, Source::Internal, Status::Success);
            shared.proxy.activity.note(stop);
        }
        if let Some(fleet) = fleet {
            control.block_on(fleet.end(&shared.proxy.activity, patient));
        }
        shared.proxy.results.clear();
        control.shutdown_timeout(CONTROL_GRACE);
        writer.close()
    }
}

impl Server {
    /// The listening address.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The TLS settings; `None` without TLS.
    pub fn tls(&self) -> Option<&Arc<ListenerTls>> {
        self.tls.as_ref()
    }

    /// State from which requests are served.
    pub fn shared(&self) -> &Arc<AppState> {
        &self.app.shared
    }

    /// Creates an address that opens the page once; `None` if browsers cannot connect.
    pub fn page_address(&self, random: [u8; PAGE_SECRET_BYTES]) -> Option<String> {
        let mut address = self.address.tcp()?;
        let loopback = match address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        address.set_ip(loopback);
        let settings = self.app.shared.proxy.settings.reader().current();
        let auth = &settings.http_auth;
        let code = self.app.shared.api.page_logins.code(&auth.api_key, random, Instant::now());
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let base = format!("{scheme}://{}", auth.host_check.address_for_browsers(address));
        Some(page::address(&base, code.expose()))
    }

    /// Installs handlers for the signals, which no longer terminate the process.
    pub fn signals(&self) -> Result<Signals, StartError> {
        let _control = self.app.control.enter();
        Ok(Signals::listen()?)
    }

    /// Serves until SIGINT, SIGTERM or the closing of its terminal, then [closes](Self::close). Returns the exit code if the shutdown was
    /// forced.
    pub fn run(self, signals: Signals) -> Result<Option<u8>, StartError> {
        let config = &self.app.shared.api.config;
        self.app.control.block_on(signals.shutdown_requested(|| config.reload_on_signal()));
        let forced = self.app.force_on_signal();
        self.close()?;
        Ok(forced.exit_code())
    }

    /// Lets calls in flight finish for up to [`DRAIN_TIMEOUT`], and closes everything. Returns an error if records could not be written.
    pub fn close(self) -> Result<(), StoreError> {
        let Self { app, address: _, tls, file, watching_tls, worker_threads, accepting } = self;
        accepting.abort();
        // From now on, no client can connect.
        drop(file);
        if let Some(watching_tls) = watching_tls {
            watching_tls.abort();
        }
        // Calls waiting for approval, or for their client's input, would delay the shutdown.
        app.shared.proxy.approvals.close();
        app.shared.proxy.held_calls.close();
        app.drain.send_replace(true);
        if let Some(tls) = tls {
            tls.drain();
        }
        app.shared.sessions.drain();
        let deadline = Instant::now() + DRAIN_TIMEOUT + WORKER_GRACE;
        app.control.block_on(async {
            // The task holds the senders of the workers' socket queues.
            let _ = accepting.await;
        });
        for worker_thread in Arc::into_inner(worker_threads).into_iter().flatten() {
            worker_thread.finish(deadline);
        }
        app.close()
    }
}

impl App {
    /// Opens a proxy that starts its upstreams and stores its log and catalog in `scratch`. Uses the logins and stderr logs of the data
    /// folder.
    pub fn try_out(
        mut config: Config,
        scratch: &Path,
        handles: LogHandles,
    ) -> Result<Self, StartError> {
        config.rules = RuleFiles::default();
        config.search = SearchSection::default();
        let settings = config.settings()?;
        let log = Activity::open(&scratch.join("activity"), config.activity.clone())?;
        let catalog = catalog::Settings { folder: None, ..config.catalog() };
        Self::assemble(&config, settings, log, (catalog, None), (handles, None))
    }
}

impl App {
    /// Opens a proxy without upstreams that answers queries of the catalog from a copy in `scratch`, by the rules in force. Does not change
    /// the data folder.
    pub fn browse(mut config: Config, scratch: &Path, log: LogHandles) -> Result<Self, StartError> {
        let settings = settings_of(&config)?;
        let copy = scratch.join("catalog");
        let mut catalog = config.catalog();
        if let Some(folder) = catalog.folder.replace(copy.clone()) {
            copy_files(&folder, &copy)
                .map_err(|error| StartError::Folder { folder: folder.clone(), error })?;
        }
        config.servers.clear();
        config.search = SearchSection::default();
        let opened = Activity::open(&scratch.join("activity"), config.activity.clone())?;
        let app = Self::assemble(&config, settings, opened, (catalog, None), (log, None))?;
        // Waits for the restoring task.
        let _ = app.shared.proxy.catalog.restore();
        Ok(app)
    }
}

/// Copies the files of a folder, which need not exist.
fn copy_files(from: &Path, to: &Path) -> io::Result<()> {
    private::new_folder(to)?;
    let entries = match std::fs::read_dir(from) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            std::fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

impl App {
    /// Opens a proxy without upstreams that answers queries of the log from a copy in `scratch`. Does not change the data folder.
    pub fn read(mut config: Config, scratch: &Path, log: LogHandles) -> Result<Self, StartError> {
        config.servers.clear();
        config.rules = RuleFiles::default();
        config.search = SearchSection::default();
        let settings = config.settings()?;
        let opened = Activity::read(&config.activity_folder(), scratch, config.activity.clone())?;
        let catalog = catalog::Settings { folder: None, ..config.catalog() };
        Self::assemble(&config, settings, opened, (catalog, None), (log, None))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::{TcpListener as StdListener, TcpStream};

    use mcpproxy_config as config;
    use mcpproxy_config::Flags;
    use mcpproxy_gateway::proxy::settings::Settings;

    use super::*;

    const KEY: &str = "0123456789abcdef0123456789abcdef";

    fn config(folder: &std::path::Path) -> Config {
        let flags = Flags { data_dir: Some(folder.into()), ..Flags::default() };
        let text = format!(r#"{{"api_key": "{KEY}", "require_mcp_auth": true}}"#);
        config::parse(&text, &|_| None, &flags).unwrap().0
    }

    fn serve(config: Config) -> Server {
        let listener = StdListener::bind("127.0.0.1:0").unwrap();
        App::start(config, LogHandles::default(), None).unwrap().serve(listener, None).unwrap()
    }

    /// Sends a request, reads the response and returns its status.
    fn ask(stream: &TcpStream, request: &str) -> u16 {
        (&mut &*stream).write_all(request.as_bytes()).unwrap();
        let mut reader = BufReader::new(stream);
        let (mut head, mut line) = (String::new(), String::new());
        while reader.read_line(&mut line).unwrap() > 2 {
            head += &std::mem::take(&mut line).to_lowercase();
        }
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
        let mut body = vec![0; length.trim().parse().unwrap()];
        reader.read_exact(&mut body).unwrap();
        head.split(' ').nth(1).unwrap().parse().unwrap()
    }

    fn get(path: &str, host: &str, key: &str) -> String {
        format!("GET {path} HTTP/1.1\r\nhost: {host}\r\nx-api-key: {key}\r\n\r\n")
    }

    fn post(key: &str) -> String {
        let body = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}"#;
        let length = body.len();
        format!(
            "POST /mcp HTTP/1.1\r\nhost: localhost\r\nx-api-key: {key}\r\ncontent-type: application/json\r\n\
             accept: application/json, text/event-stream\r\ncontent-length: {length}\r\n\r\n{body}"
        )
    }

    #[test]
    fn every_interface_checks_host_and_key_and_a_closed_proxy_can_be_reopened() {
        let folder = tempfile::tempdir().unwrap();
        for _ in 0..2 {
            let server = serve(config(folder.path()));
            for (request, status) in [
                (get("/healthz", "localhost", ""), 200),
                (get("/healthz", "evil.example", ""), 403),
                (get("/api/v1/status", "localhost", ""), 401),
                (get("/api/v1/status", "localhost", KEY), 200),
                (get("/api/v1/status", "evil.example", KEY), 403),
                (post(""), 401),
                (post(KEY), 200),
            ] {
                let stream = TcpStream::connect(server.address().tcp().unwrap()).unwrap();
                assert_eq!(ask(&stream, &request), status, "{request}");
            }
            server.close().unwrap();
        }
    }

    #[test]
    fn swapped_settings_apply_to_the_next_request_of_an_open_connection() {
        let folder = tempfile::tempdir().unwrap();
        let config = config(folder.path());
        let server = serve(config.clone());
        let streams =
            [(), ()].map(|()| TcpStream::connect(server.address().tcp().unwrap()).unwrap());
        let [messages, rest] = &streams;
        let status = get("/api/v1/status", "localhost", KEY);
        for _ in 0..2 {
            assert_eq!((ask(messages, &post(KEY)), ask(rest, &status)), (200, 200));
        }
        let settings = |key: &str| {
            let settings = config.settings().unwrap();
            let http_auth =
                mcpproxy_policy::HttpAuth { api_key: key.into(), ..settings.http_auth.clone() };
            Settings { http_auth, ..settings }
        };
        server.shared().proxy.settings.replace(settings("fedcba9876543210fedcba9876543210"));
        assert_eq!((ask(messages, &post(KEY)), ask(rest, &status)), (401, 401));
        server.shared().proxy.settings.replace(settings(KEY));
        assert_eq!((ask(messages, &post(KEY)), ask(rest, &status)), (200, 200));
        server.close().unwrap();
    }
}
