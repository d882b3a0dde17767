//! Whether this node is alive, loaded, and ready for work. Knows no HTTP of its own side, only that of dependencies.
//!
//! One refresher for each dependency keeps a snapshot; a probe reads it and waits for nothing. `/live` knows no
//! dependency: `liveness` has no place for one.

pub mod ask;
mod database;
mod dependency;
mod liveness;
mod loading;
mod news;
mod pace;
mod refresher;
mod report;
mod settings;
mod verdict;
mod wrong;

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, timeout};

pub use database::QueryError;
pub use dependency::{Mode, Spec};
pub use refresher::CheckMode;
pub use report::{Form, Report};
pub use settings::{CheckError, Settings};
pub use verdict::Failure;

use database::Database;
use dependency::{Backend, Connection};
use liveness::Liveness;
use loading::Loading;
use refresher::Watched;
use report::Check;
use wrong::Leak;

/// Names of checks: the database that `/data` uses, what the process says of itself, and the next node.
const DB: &str = "db";
const PROCESS: &str = "process";
const LOADED: &str = "loaded";
const NOT_DRAINING: &str = "not-draining";
const DOWNSTREAM: &str = "downstream";
/// The check that blocks its thread, on purpose.
const BLOCKING: &str = "db-blocking";

/// Dependencies that a node may have: more would not fit into what a kubelet reads of an answer.
const MAX_CHECKS: usize = 12;

/// How long the start waits for the first verdicts. A dependency that is slower does not hold it up.
const FIRST: Duration = Duration::from_millis(50);
/// How long a toggle waits until its effect can be seen.
const SEEN: Duration = Duration::from_millis(100);

/// The node's state; clones are the same node's.
#[derive(Clone)]
pub struct Health {
    shared: Arc<Shared>,
    /// Whose clone this is, counted from 1.
    worker: usize,
}

struct Shared {
    liveness: Liveness,
    loading: Loading,
    draining: AtomicBool,
    dependencies: Vec<Dependency>,
    database: Database,
    leak: Leak,
}

/// One dependency under watch.
struct Dependency {
    name: String,
    critical: bool,
    shown: String,
    backend: Backend,
    watched: Watched,
}

/// The toggle was turned, but the database is a real one.
#[derive(Debug)]
pub struct NotSimulated {
    /// Without secrets.
    pub url: String,
}

impl Health {
    /// Starts to check, on the current runtime; `following` is one more dependency, after those of the settings.
    ///
    /// # Errors
    /// If the dependencies cannot be checked as configured. Nothing is connected to for that.
    pub fn start(settings: &Settings, following: Option<Spec>, workers: usize) -> Result<Health, CheckError> {
        let mut specs = settings.specs()?;
        specs.extend(following);
        let backends = specs
            .iter()
            .map(|spec| Backend::new(&spec.kind).map_err(|error| CheckError::Unusable(spec.name.clone(), error)))
            .collect::<Result<Vec<_>, _>>()?;
        let dependencies: Vec<_> =
            specs.into_iter().zip(backends).map(|(spec, backend)| Dependency::watch(spec, backend, settings)).collect();
        let db = dependencies.iter().find(|dependency| dependency.name == DB).expect("specs has a database");
        let start = Instant::now();
        let shared = Shared {
            liveness: Liveness::new(*settings.heartbeat_limit, workers, start),
            loading: Loading::until(start + *settings.startup_delay),
            draining: AtomicBool::new(false),
            database: Database::new(db.backend.clone(), settings.pool()),
            leak: Leak::default(),
            dependencies,
        };
        Ok(Health { shared: Arc::new(shared), worker: 1 })
    }

    /// Waits a moment for the first verdicts, so that the first probe finds them.
    pub async fn first_verdicts(&self) {
        let all = async {
            for dependency in &self.shared.dependencies {
                dependency.watched.first().await;
            }
        };
        // A dependency that is slower is down until it has answered.
        let _ = timeout(FIRST, all).await;
    }

    /// The same node's state for worker `number`, whose runtime this is called on: from now on it shows that it moves.
    pub fn on_this_worker(&self, number: usize) -> Health {
        let shared = Arc::clone(&self.shared);
        tokio::spawn(async move {
            loop {
                shared.liveness.beat(number, Instant::now());
                tokio::time::sleep(shared.liveness.period()).await;
            }
        });
        Health { shared: Arc::clone(&self.shared), worker: number }
    }

    /// From now on the node is not ready: it is about to stop.
    pub fn drain(&self) {
        self.shared.draining.store(true, Relaxed);
    }

    /// Whether the node is about to stop.
    pub fn is_draining(&self) -> bool {
        self.shared.draining.load(Relaxed)
    }

    /// From now on the node is not alive: something is broken that only a restart mends.
    pub fn poison(&self, why: &str) {
        self.shared.liveness.poison(why);
    }

    /// From now on the node has loaded, or has not, whatever `--startup-delay` says.
    pub fn set_loaded(&self, done: bool) {
        self.shared.loading.tell(done);
    }

    pub fn is_loaded(&self) -> bool {
        self.shared.loading.is_done(Instant::now())
    }

    /// The process itself, nothing else.
    pub fn live(&self) -> Report {
        let (verdict, age) = self.shared.liveness.verdict(self.worker, Instant::now());
        Report { checks: vec![Check { age, ..Check::own(PROCESS, verdict) }] }
    }

    /// Whether traffic should come here.
    pub async fn ready(&self) -> Report {
        let mut checks = self.dependencies().await;
        checks.push(self.loaded());
        let stopping = if self.is_draining() { Err(Failure::said("the node is stopping")) } else { Ok(()) };
        checks.push(Check::own(NOT_DRAINING, stopping));
        Report { checks }
    }

    /// Whether the node has loaded.
    pub fn startup(&self) -> Report {
        Report { checks: vec![self.loaded()] }
    }

    fn loaded(&self) -> Check {
        let loading = || Failure::said("the node is still loading");
        Check::own(LOADED, self.is_loaded().then_some(()).ok_or_else(loading))
    }

    async fn dependencies(&self) -> Vec<Check> {
        // All at once: where each is asked now, the answer takes as long as the slowest, not as all together.
        join_all(self.shared.dependencies.iter().map(Dependency::check)).await
    }

    /// Name, whether it is critical, and whether it is up, of each dependency as known now.
    pub fn states(&self) -> impl Iterator<Item = (&str, bool, bool)> {
        self.shared.dependencies.iter().map(|dependency| {
            let Dependency { name, critical, watched, .. } = dependency;
            (name.as_str(), *critical, watched.known().1.is_ok())
        })
    }
}

/// The database of `/data` and `/db`.
impl Health {
    fn db(&self) -> &Dependency {
        self.shared.dependencies.iter().find(|dependency| dependency.name == DB).expect("a node has a database")
    }

    /// One business query that keeps its connection busy for `time`.
    ///
    /// # Errors
    /// If the database fails or all of the pool's connections stay in use.
    pub async fn query(&self, time: Duration) -> Result<(), QueryError> {
        self.shared.database.query(time).await
    }

    /// What the simulated database does at present.
    ///
    /// # Errors
    /// If the database is a real one.
    pub fn db_mode(&self) -> Result<Mode, NotSimulated> {
        match &self.db().backend {
            Backend::Sim(sim) => Ok(sim.mode()),
            _ => Err(NotSimulated { url: self.db().shown.clone() }),
        }
    }

    /// Tells the simulated database what to do, and waits a moment until the checks have seen it.
    ///
    /// # Errors
    /// If the database is a real one.
    pub async fn set_db_mode(&self, mode: Mode) -> Result<(), NotSimulated> {
        let db = self.db();
        let Backend::Sim(sim) = &db.backend else { return Err(NotSimulated { url: db.shown.clone() }) };
        sim.set(mode);
        db.watched.look_again(SEEN).await;
        Ok(())
    }
}

/// Ways not to check. Nothing but `/wrong/…` calls these.
impl Health {
    /// The dependencies as if they were this process.
    pub async fn wrong_live(&self) -> Report {
        Report { checks: self.dependencies().await }
    }

    /// Asks the database and waits for as long as it takes.
    pub async fn wrong_without_timeout(&self) -> Report {
        let start = Instant::now();
        let asked = async { self.db().backend.open().await?.ask().await };
        let result = asked.await;
        self.db().wrong_report(DB, result, start.elapsed())
    }

    /// Asks over a new connection that is never closed. Also how many of them are open.
    pub async fn wrong_leaky(&self) -> (Report, usize) {
        let start = Instant::now();
        let db = self.db();
        let (open, result) = self.shared.leak.ask(&db.backend).await;
        (db.wrong_report(DB, result, start.elapsed()), open)
    }

    /// Blocks the thread, as a driver without async does, and every connection that the thread serves.
    pub fn wrong_blocking(&self, time: Duration) -> Report {
        std::thread::sleep(time);
        self.db().wrong_report(BLOCKING, Ok(()), time)
    }

    /// Says yes, whatever there is.
    pub fn wrong_shallow(&self) -> Report {
        Report { checks: vec![] }
    }
}

impl Dependency {
    fn watch(spec: Spec, backend: Backend, settings: &Settings) -> Dependency {
        let kept = Arc::new(Kept { backend: backend.clone(), connection: Mutex::default() });
        let ask = move || {
            let kept = Arc::clone(&kept);
            async move { kept.ask().await }
        };
        let watched = refresher::watch(spec.name.clone(), settings.check_mode, settings.limits(), ask);
        Dependency { shown: spec.kind.to_string(), name: spec.name, critical: spec.critical, backend, watched }
    }

    async fn check(&self) -> Check {
        let (snapshot, result) = self.watched.current().await;
        Check {
            name: self.name.clone(),
            result,
            critical: self.critical,
            outside: true,
            took: snapshot.took,
            age: snapshot.age(Instant::now()),
            breaker: None,
        }
    }

    fn wrong_report(&self, name: &str, result: Result<(), Failure>, took: Duration) -> Report {
        let check = Check {
            name: name.to_owned(),
            result,
            critical: true,
            outside: true,
            took,
            age: Duration::ZERO,
            breaker: None,
        };
        Report { checks: vec![check] }
    }
}

/// A check's own connection, outside of any pool, kept from one attempt to the next.
struct Kept {
    backend: Backend,
    connection: Mutex<Option<Connection>>,
}

impl Kept {
    async fn ask(&self) -> Result<(), Failure> {
        // Taken out for as long as the attempt lasts: one that is given up closes with it.
        if let Some(mut connection) = self.take()
            && connection.ask().await.is_ok()
        {
            self.keep(connection);
            return Ok(());
        }
        // None yet, or it died while it waited, which says nothing about the dependency.
        let mut connection = self.backend.open().await?;
        connection.ask().await?;
        if connection.lasts() {
            self.keep(connection);
        }
        Ok(())
    }

    fn take(&self) -> Option<Connection> {
        self.connection.lock().expect("nobody panics with the lock held").take()
    }

    fn keep(&self, connection: Connection) {
        *self.connection.lock().expect("nobody panics with the lock held") = Some(connection);
    }
}
