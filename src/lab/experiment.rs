//! Runs one step on real processes and sockets: replicas of the stub, a gateway node with the step's policy, the load.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};
use url::Url;

use super::scenario::{HOLD_S, LOOK_S, RAMP_S, RATE, Step};
use super::settings::{Queue, Rule};
use crate::cluster::{Action, Cluster, Launch, Node, Role};
use crate::load::{self, Aim, Method, Options, Plan, Results};
use crate::manifest::{self, Policy, PoolRule};

/// A process must tell its address within this time.
const START_LIMIT: Duration = Duration::from_secs(10);
/// Asking a process that is well takes no longer.
const ASK_LIMIT: Duration = Duration::from_secs(5);
/// After the load the stub is asked this late, and must answer in this time, in seconds of the article.
const PROBE_S: f64 = 140.0;
const RECOVERY_S: f64 = 300.0;
/// How long a worker of a current WireMock stays with its connection, in ms of the article, as measured.
const KEEP_ALIVE_WINDOW_MS: f64 = 20.0;
/// How long a request of the load may take, in seconds of the article: longer than anything answers.
const PATIENCE_S: u64 = 60;

/// What one step gave.
#[derive(Debug)]
pub(super) struct Outcome {
    pub results: Results,
    /// Each second of the article: busy workers and waiting requests of the replica that has most of them.
    pub workers: Vec<[f64; 3]>,
    pub ejections: Vec<Ejection>,
    /// When a request that was sent to the stub at 140 s was answered, in seconds of the article.
    pub recovery_s: Option<f64>,
    pub interrupted: bool,
}

/// A replica out of use, in seconds of the load.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Ejection {
    pub endpoint: String,
    pub from_s: f64,
    /// `None` if it was still out at the end.
    pub until_s: Option<f64>,
}

/// Processes of one step. On drop they are killed.
struct Stage {
    stubs: Vec<Node>,
    gateway: Node,
}

/// Runs the step; `interrupted` ends it early with what there is.
pub(super) async fn run(
    cluster: &Cluster,
    step: &Step,
    speed: f64,
    out: &Path,
    interrupted: impl Future<Output = ()>,
) -> Result<Outcome> {
    let policy = policy(step, speed)?;
    let json = serde_json::to_value(&policy).context("a policy is JSON")?;
    let file = out.join(format!("{}-policy.json", step.name));
    std::fs::write(&file, format!("{json:#}\n")).with_context(|| format!("{} cannot be written", file.display()))?;
    let stage = start(cluster, step, speed, &out.join("mappings").join(step.name)).await?;
    let gateway = stage.gateway.url();
    cluster.put_json(&format!("{gateway}/policy"), &json, ASK_LIMIT).await?;
    let set = Instant::now();
    // The looks begin with the policy.
    if let Some(phase) = step.phase_s {
        sleep_until(set + Duration::from_secs_f64((LOOK_S - phase) / speed)).await;
    }
    let url: Url = format!("{gateway}/").parse().context("a node's URL")?;
    let aim = Aim::find(&url, Method::Get, &[], None).await?;
    let plan = Plan::Open { rate: RATE, ramp: Duration::from_secs(RAMP_S), hold: Duration::from_secs(HOLD_S) };
    let options = Options { speed, cut_off: true, time_out: Duration::from_secs(PATIENCE_S), ..Options::default() };
    let (begun, begun_ms) = (Instant::now(), now_ms());
    let mut load = load::start(plan, aim, options)?;
    let mut workers = Vec::new();
    let mut stopped = false;
    let results = {
        tokio::pin!(interrupted);
        let watching = watch(cluster, &stage.stubs, begun, speed, &mut workers);
        tokio::pin!(watching);
        loop {
            tokio::select! {
                results = load.finish() => break results,
                () = &mut watching => {}
                () = &mut interrupted, if !stopped => {
                    stopped = true;
                    load.stop();
                }
            }
        }
    };
    let ejections = ejections(cluster, gateway, begun_ms, speed).await?;
    let recovery_s = match step.recovery && !stopped {
        true => recovery(cluster, &stage.stubs[0], begun, speed, &mut workers).await?,
        false => None,
    };
    for node in stage.stubs.iter().chain([&stage.gateway]) {
        // They hold nothing that would be missed.
        let _ = node.act(Action::Kill).await;
    }
    Ok(Outcome { results, workers, ejections, recovery_s, interrupted: stopped })
}

/// The step's policy where time runs `speed` times as fast.
fn policy(step: &Step, speed: f64) -> Result<Policy> {
    let (mut policy, _) = manifest::policy_of(step.name, &step.policy())?;
    policy.pool.rule = match step.pool {
        Rule::Modern => PoolRule::Modern,
        Rule::Envoy113 => PoolRule::Envoy113,
    };
    Ok(policy.scaled(speed))
}

async fn start(cluster: &Cluster, step: &Step, speed: f64, mappings: &Path) -> Result<Stage> {
    let program = std::env::current_exe().context("this binary's path is unknown")?;
    let launch = |name: String, role, target, flags: Vec<String>| Launch {
        program: program.clone(),
        role,
        name,
        port: 0,
        target,
        flags: flags.into_iter().chain(["--log-level".to_owned(), "error".to_owned()]).collect(),
        variables: Vec::new(),
        limit: START_LIMIT,
    };
    let mut stubs = Vec::new();
    for (number, takes) in (1..).zip(step.replicas) {
        let directory = mappings.join(format!("replica-{number}"));
        std::fs::create_dir_all(&directory).context("no directory for the mappings")?;
        let mapping = mapping((*takes as f64 / speed).round() as u64).to_string();
        std::fs::write(directory.join("gimme.json"), mapping).context("the mapping cannot be written")?;
        let mut flags = vec!["--container-threads".to_owned(), "200".to_owned(), "--no-request-journal".to_owned()];
        flags.extend(["--mappings".to_owned(), directory.to_string_lossy().into_owned()]);
        if step.queue == Queue::KeepAliveFirst {
            let window = format!("{}ms", (KEEP_ALIVE_WINDOW_MS / speed).max(1.0).round());
            flags.extend(["--queue-order", "keep-alive-first", "--keep-alive-window", &window].map(str::to_owned));
        }
        stubs.push(cluster.start(launch(format!("stub-{number}"), Role::Stub, None, flags)).await?);
    }
    let targets: Vec<String> = stubs.iter().map(|stub| format!("{}/gimme/200", stub.url())).collect();
    let flags = ["--on-failure", "propagate", "--access-log", "off"].map(str::to_owned).to_vec();
    let gateway = cluster.start(launch("gateway".to_owned(), Role::Serve, Some(targets.join(",")), flags)).await?;
    Ok(Stage { stubs, gateway })
}

/// The article's mapping with this delay.
fn mapping(delay_ms: u64) -> Value {
    let mut response = json!({"status": 200, "body": "{\"response\":\"200\"}"});
    if delay_ms > 0 {
        response["fixedDelayMilliseconds"] = delay_ms.into();
    }
    json!({"request": {"method": "GET", "urlPathPattern": "/gimme/200*"}, "response": response})
}

fn now_ms() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64() * 1000.0
}

/// Looks at the stubs' workers once in a second of the article, for ever.
async fn watch(cluster: &Cluster, stubs: &[Node], begun: Instant, speed: f64, seen: &mut Vec<[f64; 3]>) {
    for second in 0u32.. {
        sleep_until(begun + Duration::from_secs(1).div_f64(speed) * second).await;
        let mut most: [f64; 3] = [f64::from(second), 0.0, 0.0];
        for stub in stubs {
            let url = format!("{}/__admin/rest-cascade/workers", stub.url());
            // A look that fails leaves a gap, no more.
            let Ok(gauges) = cluster.get_json(&url, ASK_LIMIT).await else { continue };
            let gauge = |name: &str| gauges[name].as_f64().unwrap_or_default();
            if gauge("busy") + gauge("queued") >= most[1] + most[2] {
                (most[1], most[2]) = (gauge("busy"), gauge("queued"));
            }
        }
        seen.push(most);
    }
}

/// When the stub answers again, asked at 140 s of the load.
async fn recovery(
    cluster: &Cluster,
    stub: &Node,
    begun: Instant,
    speed: f64,
    seen: &mut Vec<[f64; 3]>,
) -> Result<Option<f64>> {
    sleep_until(begun + Duration::from_secs_f64(PROBE_S / speed)).await;
    let url = format!("{}/gimme/200", stub.url());
    let limit = Duration::from_secs_f64(RECOVERY_S / speed);
    let mut after = Vec::new();
    let asked = tokio::select! {
        asked = cluster.get(&url, limit) => asked,
        () = watch(cluster, std::slice::from_ref(stub), Instant::now(), speed, &mut after) => unreachable!("it goes on for ever"),
    };
    seen.extend(after.into_iter().map(|[t, busy, queued]| [t + PROBE_S, busy, queued]));
    Ok(asked.is_ok().then(|| begun.elapsed().as_secs_f64() * speed))
}

async fn ejections(cluster: &Cluster, gateway: &str, begun_ms: f64, speed: f64) -> Result<Vec<Ejection>> {
    let view = cluster.get_json(&format!("{gateway}/downstream"), ASK_LIMIT).await?;
    let mut ejections: Vec<Ejection> = Vec::new();
    for event in view["events"].as_array().map(Vec::as_slice).unwrap_or_default() {
        let at = (event["atMs"].as_f64().unwrap_or_default() - begun_ms) / 1000.0 * speed;
        let endpoint = event["endpoint"].as_str().unwrap_or_default().to_owned();
        match (event["action"].as_str(), event["enforced"].as_bool()) {
            (Some("eject"), Some(true)) => ejections.push(Ejection { endpoint, from_s: at, until_s: None }),
            (Some("uneject"), _) => {
                let open = |ejection: &&mut Ejection| ejection.endpoint == endpoint && ejection.until_s.is_none();
                if let Some(ejection) = ejections.iter_mut().rev().find(open) {
                    ejection.until_s = Some(at);
                }
            }
            _ => {}
        }
    }
    Ok(ejections)
}
