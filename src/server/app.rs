//! A proxy from start to end: its parts are opened, it listens, and all of it ends in order.
//!
//! Which parts there are, and what each is made of, stands here and nowhere else.
//!
//! Size: the parts, one after another, as they are opened and as they are closed.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use futures_util::future::join_all;
use tokio::runtime::Runtime;
use tokio::sync::watch;

use super::accept::{accept, max_connections};
use super::app_state::AppState;
use super::connection_limit::ConnectionSlots;
use super::embeddings::EmbeddingTasks;
use super::fleet_start::{FleetEntry, FleetTasks};
use super::listener::{Listener, SocketFile};
use super::listener_tls::ListenerTls;
use super::otlp_export::{OtlpExport, OtlpTargets};
use super::reload::{ConfigSource, Reload};
use super::runtime::{self, cores};
use super::shutdown::{CHILDREN_TIMEOUT, CONTROL_GRACE, DRAIN_TIMEOUT, Hurry, WORKER_GRACE};
use super::signals::Signals;
use super::start_error::StartError;
use super::strays::Strays;
use super::worker_thread::{Ends, WorkerEntrance, WorkerThread};
use super::{certificate_watch, control, folder, forgotten, identity_watch, webhook};
use super::{fleet_leaves, fleet_pins};
use crate::activity::record::{Draft, Source, Status, Type};
use crate::activity::{Activity, StoreError, Writer};
use crate::api;
use crate::api::config_door::{ConfigDoor, ConfigStanding};
use crate::approvals;
use crate::catalog::{self, Catalog};
use crate::config::{Config, rule_files};
use crate::downstream::session_table::Sessions;
use crate::embeddings::MeaningRoom;
use crate::fleet::FleetNode;
use crate::fleet::sealed_mark::NodeTag;
use crate::identity::{Identity, JwtVerifier, PAGE_SECRET_BYTES, PageLogins, TokenFile};
use crate::io::address::Address;
use crate::os::descriptors;
use crate::page;
use crate::proxy::body_room::RequestBodies;
use crate::proxy::dropped_members::DroppedMembers;
use crate::proxy::overview::OverviewCache;
use crate::proxy::result_pool::ResultPool;
use crate::proxy::session_facts::SessionlessFacts;
use crate::proxy::settings::{Settings, SettingsSwap};
use crate::proxy::validation_pool::ValidationPool;
use crate::proxy::{Proxy, log_routing, passthrough};
use crate::results::{self, ResultStore};
use crate::telemetry::export_queue::export_queue;
use crate::telemetry::{Calls, LogHandles};
use crate::upstream::stderr_log;

/// A proxy whose parts are open, with or without a listener.
#[derive(Debug)]
pub struct App {
    shared: Arc<AppState>,
    control: Runtime,
    writer: Writer,
    drain: watch::Sender<bool>,
    hurry: Hurry,
    /// Connections that clients may have open at once.
    max_connections: usize,
    /// Passes the upstreams' notifications on.
    following: tokio::task::JoinHandle<()>,
    /// Watches the file of keys, and fetches keys.
    watching: tokio::task::JoinHandle<()>,
    /// Tells the webhook of approvals, while there is one.
    telling: tokio::task::JoinHandle<()>,
    /// Removes kept results when their time is up.
    expiring: tokio::task::JoinHandle<()>,
    /// Looks after the files of config, rules and tokens.
    reloading: tokio::task::JoinHandle<()>,
    /// Send traced calls, and lines of the log, to their collector, while there is one.
    exporting: Vec<OtlpExport>,
    /// Ask for vectors of tools and queries, while somebody makes them.
    embedding: EmbeddingTasks,
    /// The node's part in its fleet, where there is one.
    fleet: Option<FleetTasks>,
}

/// A proxy that listens.
#[derive(Debug)]
pub struct Server {
    app: App,
    address: Address,
    tls: Option<Arc<ListenerTls>>,
    /// Of a Unix socket; removed at the end.
    file: Option<SocketFile>,
    /// Watches the files of TLS.
    watching_tls: Option<tokio::task::JoinHandle<()>>,
    worker_threads: Arc<Vec<WorkerThread>>,
    accepting: tokio::task::JoinHandle<()>,
}

/// What calls are decided by, with the rules that the config names.
fn settings_of(config: &Config) -> Result<Settings, StartError> {
    let mut settings = config.settings()?;
    // Before the tools are known: what names one that is not there is told when they are.
    let rules = rule_files::load(&config.rules, &rule_files::servers(config));
    settings.policy.rules = rules.map_err(StartError::Rules)?.map(Arc::new);
    Ok(settings)
}

impl App {
    /// Opens the parts of a proxy and starts its upstreams; waits for none of them. `log` is this process's, whose losses
    /// `/api/v1/status` shows. The config is read again from `source`, if there is one.
    ///
    /// # Errors
    ///
    /// [`StartError`].
    pub fn start(
        config: Config,
        handles: LogHandles,
        source: Option<ConfigSource>,
    ) -> Result<Self, StartError> {
        let mut settings = settings_of(&config)?;
        let folder = &config.data_dir;
        folder::open(folder)
            .map_err(|error| StartError::Folder { folder: folder.clone(), error })?;
        // Before the log, which opens as many files as it may.
        descriptors::raise();
        let log = Activity::open(&config.activity_folder(), config.activity.clone())?;
        let entry = FleetEntry::take(&config, &log.0)?;
        let of_fleet = entry.as_ref().map(|entry| entry.config(&config, source.as_ref()));
        let config = match of_fleet.transpose()?.flatten() {
            Some(next) => {
                settings = settings_of(&next)?;
                next
            }
            None => config,
        };
        // The log is this process's, and so is the data folder.
        let folder = config.results_folder();
        results::clean(&folder, config.keeps_results())
            .map_err(|error| StartError::Results { folder, error })?;
        log.0.note(Draft::new(Type::SystemStart, Source::Internal, Status::Success));
        let catalog = config.catalog();
        let node = entry.as_ref().map(FleetEntry::node);
        let parts = (handles, source.clone());
        let mut app = Self::assemble(&config, settings, log, (catalog, node), parts)?;
        let (shared, runtime) = (&app.shared, app.control.handle());
        app.fleet = entry.map(|entry| entry.start(&config, shared, source, runtime));
        forgotten::note(&app.shared.proxy.activity, &app.control);
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
        let control = runtime::control()?;
        let catalog = Arc::new(Catalog::new(catalog));
        if let Some(facts) = fleet.as_deref().and_then(FleetNode::shared) {
            catalog.begin_with(fleet_pins::of_fleet(&facts.facts()));
        }
        control::restore(&catalog, &activity, &control);
        let upstreams = control::supervise(config, &catalog, &activity, &control);
        let mut seed = [0; 8];
        getrandom::fill(&mut seed).map_err(io::Error::from)?;
        let identity = Arc::new(Identity::new(
            TokenFile::new(&config.data_dir),
            config.jwt.clone().map(JwtVerifier::new),
        ));
        identity_watch::look(&identity);
        let bounds = approvals::RoomBounds::of_log(config.activity.queue_records);
        let (webhook, hook) = watch::channel(config.approval.webhook.clone());
        let (told, telling) = webhook::start(hook, &control);
        let otlp = OtlpTargets::of(&config.telemetry, handles.tap.clone());
        let (spans, ended) = export_queue();
        let instance: Box<str> = format!("{:016x}", u64::from_ne_bytes(seed)).into();
        let mut exporting =
            vec![OtlpExport::start(otlp.traces(), ended, instance.clone(), &control)];
        // One proxy of a process exports its log.
        if let Some(lines) = handles.tap.receiver() {
            exporting.push(OtlpExport::start(otlp.logs(), lines, instance, &control));
        }
        let room = approvals::Room::new(bounds, Some(told));
        let room = match &fleet {
            Some(node) => room.of_node(&NodeTag::of(&node.name).text()),
            None => room,
        };
        let room = Arc::new(match config.approval_keys() {
            Some(keys) => room.with_shared_states(keys),
            None => room,
        });
        if let Some(facts) = fleet.as_deref().and_then(FleetNode::shared) {
            fleet_leaves::begin_with(&room, facts);
        }
        let dropped_members = Arc::new(DroppedMembers::default());
        let (meaning, queries) = MeaningRoom::new(config.search.embeddings.as_ref());
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
            approvals: room,
            settings: SettingsSwap::new(settings),
            session_facts: SessionlessFacts::default(),
            activity,
            fleet,
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
        let following = control.spawn(passthrough::notifications::follow(Arc::clone(&proxy)));
        let expiring = control.spawn(Arc::clone(&proxy.results).expire_in_time());
        let watching = control.spawn(identity_watch::watch(Arc::clone(&proxy.identity)));
        let path = source.as_ref().map(|source| source.path.display().to_string());
        let (door, wishes) =
            ConfigDoor::new(ConfigStanding::of(&path.unwrap_or_default(), config.written.shown()));
        let reload = Reload {
            proxy: Arc::clone(&proxy),
            door: door.clone(),
            wishes,
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
            Arc::new(config.ticket_office().map_or_else(Sessions::default, Sessions::of_fleet));
        let shared = AppState {
            proxy,
            api: api::State {
                started,
                ending,
                lines: handles.lines,
                tap: handles.tap,
                config: door,
                readers: api::ReaderSlots::default(),
                page_logins: PageLogins::default(),
                sessions: Arc::clone(&sessions),
                connections: OnceLock::new(),
                fleet_index: OnceLock::new(),
                certificate: OnceLock::new(),
                fleet_config: OnceLock::new(),
            },
            sessions,
            strays: Strays::default(),
            started,
        };
        let (shared, hurry) = (Arc::new(shared), Hurry::default());
        Ok(Self {
            shared,
            control,
            writer,
            drain,
            hurry,
            max_connections,
            following,
            watching,
            telling,
            expiring,
            reloading,
            exporting,
            embedding,
            fleet: None,
        })
    }

    /// The state that requests are answered from.
    #[must_use]
    pub fn shared(&self) -> &Arc<AppState> {
        &self.shared
    }

    /// From now on a further signal cuts the shutdown short.
    #[must_use]
    pub fn hurries(&self) -> Hurry {
        let proxy = Arc::clone(&self.shared.proxy);
        self.hurry.watch(move || proxy.upstreams.kill());
        self.hurry.clone()
    }

    /// Starts to serve HTTP on a listener, over TLS if there is any.
    ///
    /// # Errors
    ///
    /// [`StartError::System`]; the parts are closed again.
    pub fn serve(
        self,
        listener: impl Into<Listener>,
        tls: Option<ListenerTls>,
    ) -> Result<Server, StartError> {
        let (listener, tls) = (listener.into(), tls.map(Arc::new));
        self.shared.proxy.approvals.open();
        let address = listener.address()?;
        if let Some(tls) = &tls {
            // It listens once.
            let _ = self.shared.api.certificate.set(Arc::clone(tls.health()));
        }
        let worker_threads = (0..cores())
            .map(|number| {
                let ends = Ends { drain: self.drain.subscribe(), hurry: self.hurry.clone() };
                let entrance = WorkerEntrance { address: address.clone(), tls: tls.clone() };
                WorkerThread::start(Arc::clone(&self.shared), number, entrance, ends)
            })
            .collect::<io::Result<Vec<_>>>()?;
        let open = worker_threads
            .iter()
            .map(|worker_thread| Arc::clone(&worker_thread.connections))
            .collect();
        // It listens once.
        let _ = self.shared.api.connections.set(open);
        let worker_threads = Arc::new(worker_threads);
        let (listener, file) = {
            let _control = self.control.enter();
            listener.open()?
        };
        let watching_tls = tls.clone().map(|tls| self.control.spawn(certificate_watch::watch(tls)));
        let slots = ConnectionSlots::new(self.max_connections);
        let accepting = self.control.spawn(accept(listener, Arc::clone(&worker_threads), slots));
        Ok(Server { app: self, address, tls, file, watching_tls, worker_threads, accepting })
    }

    /// Ends the upstreams with their children, writes what is left of the log, and closes.
    ///
    /// # Errors
    ///
    /// When records could not be written.
    pub fn close(self) -> Result<(), StoreError> {
        let Self {
            shared,
            control,
            writer,
            hurry,
            following,
            watching,
            telling,
            expiring,
            reloading,
            exporting,
            embedding,
            fleet,
            ..
        } = self;
        // Ended before the servers are: it may be about to start some.
        reloading.abort();
        let _ = control.block_on(reloading);
        following.abort();
        watching.abort();
        embedding.end();
        shared.proxy.approvals.close();
        telling.abort();
        expiring.abort();
        let patience = if hurry.exit_code().is_some() { Duration::ZERO } else { CHILDREN_TIMEOUT };
        let deadline = Instant::now() + patience;
        control.block_on(shared.proxy.upstreams.shutdown(deadline));
        control.block_on(shared.proxy.catalog.close(deadline));
        // All calls have ended.
        let patient = hurry.exit_code().is_none();
        control.block_on(join_all(exporting.into_iter().map(|export| export.end(patient))));
        if !writer.only_reads() {
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
    /// The address that it listens on.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// How its connections are made; `None`: without TLS.
    #[must_use]
    pub fn tls(&self) -> Option<&Arc<ListenerTls>> {
        self.tls.as_ref()
    }

    /// The state that requests are answered from.
    #[must_use]
    pub fn shared(&self) -> &Arc<AppState> {
        &self.app.shared
    }

    /// An address that opens the page once, by a code of so much randomness; `None` where no browser can come.
    #[must_use]
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

    /// From now on signals are awaited, and end nothing by themselves.
    ///
    /// # Errors
    ///
    /// When the system does not let them be awaited.
    pub fn signals(&self) -> Result<Signals, StartError> {
        let _control = self.app.control.enter();
        Ok(Signals::listen()?)
    }

    /// Serves until SIGINT, SIGTERM or the end of its terminal, then [closes](Self::close). The
    /// exit code, if that was hurried.
    ///
    /// # Errors
    ///
    /// When records could not be written.
    pub fn run(self, signals: Signals) -> Result<Option<u8>, StartError> {
        let config = &self.app.shared.api.config;
        self.app.control.block_on(signals.told_to_end(|| config.signalled()));
        let hurry = self.app.hurries();
        self.close()?;
        Ok(hurry.exit_code())
    }

    /// Lets calls in flight finish, at most [`DRAIN_TIMEOUT`], and ends everything.
    ///
    /// # Errors
    ///
    /// When records could not be written.
    pub fn close(self) -> Result<(), StoreError> {
        let Self { app, address: _, tls, file, watching_tls, worker_threads, accepting } = self;
        accepting.abort();
        // Nobody comes any more.
        drop(file);
        if let Some(watching_tls) = watching_tls {
            watching_tls.abort();
        }
        // What waits for a person would wait on.
        app.shared.proxy.approvals.close();
        app.drain.send_replace(true);
        if let Some(tls) = tls {
            tls.drain();
        }
        app.shared.sessions.drain();
        let deadline = Instant::now() + DRAIN_TIMEOUT + WORKER_GRACE;
        app.control.block_on(async {
            // The task holds the threads, and with them the ends of the sockets' queues.
            let _ = accepting.await;
        });
        for worker_thread in Arc::into_inner(worker_threads).into_iter().flatten() {
            worker_thread.finish(deadline);
        }
        app.close()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::{TcpListener as StdListener, TcpStream};

    use super::*;
    use crate::config::{self, Flags};
    use crate::proxy::settings::Settings;

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

    /// Sends one request and reads its answer, whose status is returned.
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
    fn every_door_has_its_locks_and_what_is_closed_can_be_opened_again() {
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
    fn settings_that_are_swapped_count_for_the_next_request_of_an_open_connection() {
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
                crate::policy::HttpAuth { api_key: key.into(), ..settings.http_auth.clone() };
            Settings { http_auth, ..settings }
        };
        server.shared().proxy.settings.replace(settings("fedcba9876543210fedcba9876543210"));
        assert_eq!((ask(messages, &post(KEY)), ask(rest, &status)), (401, 401));
        server.shared().proxy.settings.replace(settings(KEY));
        assert_eq!((ask(messages, &post(KEY)), ask(rest, &status)), (200, 200));
        server.close().unwrap();
    }
}
