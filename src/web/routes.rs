//! Every path of a node, by what it is for. Faults lie over the business routes and the guard over those that change
//! something, here, as layers: no path is exempt from anything by its name.

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::from_fn_with_state;
use axum::routing::{MethodRouter, get};
use tower_http::set_header::SetResponseHeaderLayer;

use super::error::Problem;
use super::guard::{self, Guard};
use super::inject::{self, Injector, Refuse};
use super::{Node, cascade, config, database, faults, openapi, policy, probes, wrong};

/// Aliases beside each other. The first path is the label in metrics.
type Paths = &'static [&'static str];

/// A line of the table: paths, what they do, and which methods they take.
type Line = (Paths, MethodRouter<Node>, &'static str);

const READ: &str = "GET, HEAD, OPTIONS";

/// Which of a node's ports a request comes in by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// The only port.
    Only,
    /// The port for everybody, where control has one of its own.
    Public,
    /// The port that `--control-listen` names.
    Control,
}

/// The paths that do a node's work. Faults are injected here and nowhere else.
fn business() -> Vec<Line> {
    vec![
        (&["/"], get(cascade::get), READ),
        (&["/work", "/viec"], get(database::work), READ),
        (&["/data"], get(database::data), READ),
    ]
}

/// What orchestrators ask. `/startup` is told here, too, that start-up is done.
fn probes() -> Vec<Line> {
    vec![
        (&["/live", "/livez", "/health/live", "/song"], get(probes::live), READ),
        (&["/ready", "/readyz", "/health/ready", "/san-sang"], get(probes::ready), READ),
        (
            &["/startup", "/startupz", "/health/started"],
            get(probes::startup).put(probes::finish_loading).post(probes::finish_loading),
            "GET, HEAD, PUT, POST, OPTIONS",
        ),
    ]
}

/// Probes as they should not be, on purpose.
fn wrong_probes() -> Vec<Line> {
    vec![
        (&["/wrong/live", "/gop-sai"], get(wrong::live), READ),
        (&["/wrong/no-timeout"], get(wrong::no_timeout), READ),
        (&["/wrong/shallow"], get(wrong::shallow), READ),
    ]
}

/// Those of them that do harm when they are asked: to this node, or to its database.
fn harmful_probes() -> Vec<Line> {
    vec![(&["/wrong/blocking", "/chan"], get(wrong::blocking), READ), (&["/wrong/leaky"], get(wrong::leaky), READ)]
}

/// The paths that change how the node behaves.
fn control() -> Vec<Line> {
    vec![
        (
            &["/faults"],
            get(faults::get).put(faults::put).post(faults::put).delete(faults::delete),
            "GET, HEAD, PUT, POST, DELETE, OPTIONS",
        ),
        (&["/policy"], get(policy::get).put(policy::put).post(policy::put), "GET, HEAD, PUT, POST, OPTIONS"),
        (&["/downstream"], get(policy::downstream).post(policy::order), "GET, HEAD, POST, OPTIONS"),
        (
            &["/db", "/dat"],
            get(database::toggle).put(database::toggle).post(database::toggle),
            "GET, HEAD, PUT, POST, OPTIONS",
        ),
    ]
}

/// The paths that show how the node is.
fn observation() -> Vec<Line> {
    vec![
        (&["/config"], get(config::config), READ),
        (&["/metrics"], get(config::metrics), READ),
        (&["/openapi.json"], get(openapi::document), READ),
    ]
}

/// All paths and their methods, by line of the table.
pub(super) fn allowed() -> impl Iterator<Item = (Paths, &'static str)> {
    let all = [business(), probes(), wrong_probes(), harmful_probes(), control(), observation()];
    all.into_iter().flatten().map(|(paths, _, allow)| (paths, allow))
}

/// All paths, by line of the table.
pub(super) fn paths() -> impl Iterator<Item = Paths> {
    allowed().map(|(paths, _)| paths)
}

/// The routes behind `door`; `with_faults` lays those that are in force around the business ones.
pub(super) fn router(node: &Node, door: Door, with_faults: bool) -> Router {
    let business = business().into_iter().map(|line| if with_faults { faulty(node, line) } else { line });
    let harmful = harmful_probes().into_iter().map(|(paths, methods, allow)| {
        (paths, methods.route_layer(from_fn_with_state(node.clone(), guard::own_site)), allow)
    });
    let probes = probes().into_iter().chain(wrong_probes()).chain(harmful).map(never_stored);
    let control = control().into_iter().chain(observation()).map(never_stored);
    let lines: Vec<Line> = match door {
        Door::Only => business.chain(probes).chain(control).collect(),
        Door::Public => business.chain(probes).collect(),
        Door::Control => probes.chain(control).collect(),
    };
    lines
        .into_iter()
        .map(|line| guarded(node, door, line))
        .fold(Router::new(), add)
        .fallback(not_found)
        .method_not_allowed_fallback(not_allowed)
        .with_state(node.clone())
}

fn faulty(node: &Node, (paths, methods, allow): Line) -> Line {
    let refuse: Refuse = if paths == ["/"] { cascade::refuse } else { Problem::refuse };
    let injector = Injector { node: node.clone(), refuse };
    (paths, methods.route_layer(from_fn_with_state(injector, inject::inject)), allow)
}

/// A line that only reads needs no guard, and a probe must have none.
fn guarded(node: &Node, door: Door, (paths, methods, allow): Line) -> Line {
    if allow == READ {
        return (paths, methods, allow);
    }
    let guard = Guard { node: node.clone(), door, any_query: paths == ["/faults"] };
    (paths, methods.route_layer(from_fn_with_state(guard, guard::guard)), allow)
}

fn never_stored((paths, methods, allow): Line) -> Line {
    let no_store = HeaderValue::from_static("no-store");
    (paths, methods.layer(SetResponseHeaderLayer::if_not_present(header::CACHE_CONTROL, no_store)), allow)
}

fn add(mut router: Router<Node>, (paths, methods, allow): Line) -> Router<Node> {
    let methods = with_options(methods, allow);
    for path in paths {
        router = router.route(path, methods.clone());
        // A slash at the end is a slip of the pen, and no reason to restart a node.
        if *path != "/" {
            router = router.route(&format!("{path}/"), methods.clone());
        }
    }
    router
}

/// Answers OPTIONS too. axum knows what a path allows only for 405, so the table says it.
fn with_options(methods: MethodRouter<Node>, allow: &'static str) -> MethodRouter<Node> {
    methods.options(async move |State(node): State<Node>| {
        let methods: Vec<_> = allow.split(", ").collect();
        let header = (header::ALLOW, HeaderValue::from_static(allow));
        ([header], axum::Json(serde_json::json!({ "host": node.name(), "allow": methods })))
    })
}

async fn not_found(State(node): State<Node>, uri: Uri) -> Problem {
    Problem::new(&node, StatusCode::NOT_FOUND, format!("no such path: {}", uri.path()))
}

async fn not_allowed(State(node): State<Node>, method: Method, uri: Uri) -> Problem {
    Problem::new(&node, StatusCode::METHOD_NOT_ALLOWED, format!("{} does not take {method}", uri.path()))
}
