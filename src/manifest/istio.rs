//! Istio's `DestinationRule` and `VirtualService` as a [`Policy`]: what it says about the calls to one next hop.
//!
//! A field that neither Istio nor we know is refused with its file and line; one of Istio's that has no effect here is
//! a warning. The article's fragments, without kind and metadata, are taken as what they would stand in.

use std::fmt;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use thiserror::Error;

use super::policy::Policy;
use super::yaml::{self, Entry, Node};

/// A policy is a few hundred bytes; what is larger than this is something else.
const MAX_FILE: u64 = 256 * 1024;

/// What is wrong with a file, and where: one line.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{}: {what}", Place(file, *line))]
pub struct ManifestError {
    pub file: PathBuf,
    pub line: Option<usize>,
    pub what: String,
}

struct Place<'a>(&'a Path, Option<usize>);

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.1 {
            Some(line) => write!(f, "{}:{line}", self.0.display()),
            None => write!(f, "{}", self.0.display()),
        }
    }
}

/// Fields that Istio knows and that change nothing here, by where they stand.
const WITHOUT_EFFECT: [(&str, &[&str]); 8] = [
    ("destination rule", &["subsets", "exportTo", "workloadSelector"]),
    ("trafficPolicy", &["tls", "tunnel", "proxyProtocol"]),
    ("connectionPool.tcp", &["tcpKeepalive"]),
    ("connectionPool.http", &["h2UpgradePolicy", "useClientProtocol", "maxConcurrentStreams"]),
    ("loadBalancer", &["localityLbSetting", "warmup", "warmupDurationSecs"]),
    ("virtual service", &["gateways", "exportTo", "tcp", "tls"]),
    (
        "http[0]",
        &[
            "name",
            "match",
            "route",
            "headers",
            "rewrite",
            "corsPolicy",
            "mirror",
            "mirrors",
            "mirrorPercentage",
            "fault",
        ],
    ),
    ("retries", &["retryRemoteLocalities", "retryIgnorePreviousHosts"]),
];

/// Those of them that nobody expects to have one, or that only say who is meant.
const UNREMARKABLE: [&str; 3] = ["match", "route", "name"];

/// Counts of which 0 means "no limit" to Istio and "refuse all" to Envoy.
const ZERO_IS_NONE: [&str; 4] = ["maxConnections", "http1MaxPendingRequests", "http2MaxRequests", "maxRetries"];

/// Reads the policy that `files` hold together; with it, a sentence for each thing in them that has no effect.
///
/// # Errors
/// The first thing that is wrong, with file, line and field.
pub fn policy(files: &[PathBuf]) -> Result<(Policy, Vec<String>), ManifestError> {
    let mut reader = Reader::default();
    for file in files {
        let refuse = |what: String| ManifestError { file: file.clone(), line: None, what };
        let length = std::fs::metadata(file).map_err(|error| refuse(error.to_string()))?.len();
        if length > MAX_FILE {
            return Err(refuse(format!("{length} bytes are more than the {MAX_FILE} of a policy file")));
        }
        let text = std::fs::read_to_string(file).map_err(|error| refuse(error.to_string()))?;
        reader.file(file, &text)?;
    }
    Ok((reader.policy, reader.warnings))
}

/// The same for one text under a name.
///
/// # Errors
/// As [`policy`].
pub fn policy_of(name: &str, text: &str) -> Result<(Policy, Vec<String>), ManifestError> {
    let mut reader = Reader::default();
    reader.file(Path::new(name), text)?;
    Ok((reader.policy, reader.warnings))
}

#[derive(Default)]
struct Reader {
    policy: Policy,
    warnings: Vec<String>,
    /// Where each kind was read.
    destination_rule: Option<String>,
    virtual_service: Option<String>,
}

/// One file, for what is said of it.
struct File<'a> {
    path: &'a Path,
}

impl File<'_> {
    fn error(&self, line: usize, what: String) -> ManifestError {
        ManifestError { file: self.path.to_owned(), line: Some(line), what }
    }

    fn at(&self, line: usize) -> String {
        Place(self.path, Some(line)).to_string()
    }
}

impl Reader {
    fn file(&mut self, path: &Path, text: &str) -> Result<(), ManifestError> {
        let file = File { path };
        let documents = yaml::documents(text).map_err(|error| file.error(error.line, error.what))?;
        if documents.is_empty() {
            return Err(ManifestError { file: path.to_owned(), line: None, what: "holds no policy".to_owned() });
        }
        documents.iter().try_for_each(|document| self.document(&file, document))
    }

    fn document(&mut self, file: &File<'_>, document: &Node) -> Result<(), ManifestError> {
        let Some(kind) = document.get("kind") else { return self.fragment(file, document) };
        let name = kind.text().unwrap_or_default();
        if let Some(entry) = document
            .entries()
            .iter()
            .find(|entry| !["apiVersion", "kind", "metadata", "spec", "status"].contains(&entry.key.as_str()))
        {
            return Err(unknown(file, entry, name));
        }
        match name {
            "DestinationRule" | "VirtualService" => {}
            _ => {
                self.warnings.push(format!("{}: a {name} has no effect here", file.at(document.line)));
                return Ok(());
            }
        }
        let group = document.get("apiVersion").and_then(Node::text).unwrap_or_default();
        if !group.starts_with("networking.istio.io/") {
            return Err(file.error(
                document.get("apiVersion").map_or(document.line, |node| node.line),
                format!("apiVersion: {group:?} is not networking.istio.io/v1, as a {name} needs"),
            ));
        }
        let spec = document.get("spec").ok_or_else(|| file.error(document.line, format!("this {name} has no spec")))?;
        if name == "DestinationRule" { self.destination(file, spec) } else { self.service(file, spec) }
    }

    /// As the article prints them: the part that matters, without what it stands in.
    fn fragment(&mut self, file: &File<'_>, document: &Node) -> Result<(), ManifestError> {
        let has = |key| document.get(key).is_some();
        match (has("trafficPolicy"), has("http")) {
            (true, false) => self.destination(file, document),
            (false, true) => self.service(file, document),
            _ => Err(file.error(
                document.line,
                "neither a DestinationRule or VirtualService nor a trafficPolicy or http of one".to_owned(),
            )),
        }
    }

    fn once(seen: &mut Option<String>, file: &File<'_>, spec: &Node, kind: &str) -> Result<(), ManifestError> {
        let host = spec.get("host").or_else(|| spec.get("hosts").and_then(|hosts| hosts.items().first()));
        let here = format!("{} for {}", file.at(spec.line), host.and_then(Node::text).unwrap_or("no host"));
        if let Some(first) = seen {
            let what = format!("a second {kind} ({here}), the first is in {first}: a node has one next hop");
            return Err(file.error(spec.line, what));
        }
        *seen = Some(here);
        Ok(())
    }

    fn destination(&mut self, file: &File<'_>, spec: &Node) -> Result<(), ManifestError> {
        Reader::once(&mut self.destination_rule, file, spec, "DestinationRule")?;
        let mut traffic = None;
        for entry in spec.entries() {
            match entry.key.as_str() {
                "host" => {}
                "trafficPolicy" => traffic = Some(&entry.value),
                _ => self.no_effect(file, entry, "destination rule", "")?,
            }
        }
        let Some(traffic) = traffic else { return Ok(()) };
        let mut members = Map::new();
        for entry in traffic.entries() {
            let value = match entry.key.as_str() {
                "connectionPool" => self.pool(file, &entry.value)?,
                "outlierDetection" => self.outliers(file, &entry.value)?,
                "loadBalancer" => self.balancer(file, &entry.value)?,
                "retryBudget" | "pool" => entry.value.json(),
                "portLevelSettings" => {
                    return Err(file.error(
                        entry.line,
                        "trafficPolicy.portLevelSettings: a node has one next hop with one port; say it in trafficPolicy"
                            .to_owned(),
                    ));
                }
                _ => {
                    self.no_effect(file, entry, "trafficPolicy", "trafficPolicy.")?;
                    continue;
                }
            };
            members.insert(entry.key.clone(), value);
        }
        let read = self.read(file, traffic, "trafficPolicy", members)?;
        self.policy = Policy { timeout: self.policy.timeout, retries: self.policy.retries.take(), ..read };
        Ok(())
    }

    fn pool(&mut self, file: &File<'_>, pool: &Node) -> Result<Value, ManifestError> {
        let mut parts = Map::new();
        for entry in pool.entries() {
            let place = match entry.key.as_str() {
                "tcp" => "connectionPool.tcp",
                "http" => "connectionPool.http",
                _ => return Err(unknown(file, entry, "trafficPolicy.connectionPool")),
            };
            let mut members = Map::new();
            for member in entry.value.entries() {
                if is_without_effect(place, &member.key) {
                    self.no_effect(file, member, place, &format!("{place}."))?;
                    continue;
                }
                if ZERO_IS_NONE.contains(&member.key.as_str()) && member.value.json() == json!(0) {
                    let at = file.at(member.line);
                    self.warnings.push(format!("{at}: {place}.{}: 0 is no limit, as in Istio", member.key));
                }
                members.insert(member.key.clone(), member.value.json());
            }
            parts.insert(entry.key.clone(), Value::Object(members));
        }
        Ok(Value::Object(parts))
    }

    fn outliers(&mut self, file: &File<'_>, detection: &Node) -> Result<Value, ManifestError> {
        let mut members = Map::new();
        let old = detection.entry("consecutiveErrors");
        for entry in detection.entries().iter().filter(|entry| entry.key != "consecutiveErrors") {
            members.insert(entry.key.clone(), entry.value.json());
        }
        let Some(old) = old else { return Ok(Value::Object(members)) };
        if let Some(new) = detection.entry("consecutiveGatewayErrors") {
            let what = format!(
                "outlierDetection.consecutiveErrors is the old name of consecutiveGatewayErrors, which stands in line {}",
                new.line
            );
            return Err(file.error(old.line, what));
        }
        let at = file.at(old.line);
        self.warnings.push(format!(
            "{at}: outlierDetection.consecutiveErrors (Istio up to 1.5) is read as consecutiveGatewayErrors: 502, 503 \
             and 504 count, 500 does not"
        ));
        members.insert("consecutiveGatewayErrors".to_owned(), old.value.json());
        members.entry("consecutive5xxErrors").or_insert_with(|| json!(0));
        Ok(Value::Object(members))
    }

    fn balancer(&mut self, file: &File<'_>, balancer: &Node) -> Result<Value, ManifestError> {
        let mut members = Map::new();
        for entry in balancer.entries() {
            match (entry.key.as_str(), entry.value.text()) {
                ("simple", Some("LEAST_CONN")) => {
                    let at = file.at(entry.line);
                    self.warnings
                        .push(format!("{at}: loadBalancer.simple LEAST_CONN is LEAST_REQUEST by its new name"));
                    members.insert("simple".to_owned(), json!("LEAST_REQUEST"));
                }
                ("simple", Some("UNSPECIFIED")) => {}
                ("simple", _) => {
                    members.insert("simple".to_owned(), entry.value.json());
                }
                ("consistentHash", _) => {
                    let what = "loadBalancer.consistentHash: not done here; ROUND_ROBIN, LEAST_REQUEST and RANDOM are";
                    return Err(file.error(entry.line, what.to_owned()));
                }
                _ => self.no_effect(file, entry, "loadBalancer", "loadBalancer.")?,
            }
        }
        Ok(Value::Object(members))
    }

    fn service(&mut self, file: &File<'_>, spec: &Node) -> Result<(), ManifestError> {
        Reader::once(&mut self.virtual_service, file, spec, "VirtualService")?;
        let mut routes = None;
        for entry in spec.entries() {
            match entry.key.as_str() {
                "hosts" => {}
                "http" => routes = Some(&entry.value),
                _ => self.no_effect(file, entry, "virtual service", "")?,
            }
        }
        let Some(routes) = routes else { return Ok(()) };
        let [route] = routes.items() else {
            let what =
                format!("http: {} routes, but a node has one next hop: exactly one is needed", routes.items().len());
            return Err(file.error(routes.line, what));
        };
        let mut members = Map::new();
        for entry in route.entries() {
            match entry.key.as_str() {
                "timeout" => {
                    members.insert("timeout".to_owned(), entry.value.json());
                }
                "retries" => {
                    let mut retries = Map::new();
                    for member in entry.value.entries() {
                        if is_without_effect("retries", &member.key) {
                            self.no_effect(file, member, "retries", "http[0].retries.")?;
                        } else {
                            retries.insert(member.key.clone(), member.value.json());
                        }
                    }
                    members.insert("retries".to_owned(), Value::Object(retries));
                }
                _ => self.no_effect(file, entry, "http[0]", "http[0].")?,
            }
        }
        let read = self.read(file, route, "http[0]", members)?;
        (self.policy.timeout, self.policy.retries) = (read.timeout, read.retries);
        Ok(())
    }

    /// Reads what was gathered from `node`; an error gets the line of the field that it names.
    fn read(
        &mut self,
        file: &File<'_>,
        node: &Node,
        prefix: &str,
        members: Map<String, Value>,
    ) -> Result<Policy, ManifestError> {
        Policy::from_value(Value::Object(members)).map_err(|(path, what)| {
            // The text of an error may name its place in a text that nobody has seen.
            let what = what.split(" at line ").next().unwrap_or_default();
            let (line, _) = path.split('.').fold((node.line, Some(node)), |(line, node), key| {
                let entry = node.and_then(|node| node.entry(key));
                (entry.map_or(line, |entry| entry.line), entry.map(|entry| &entry.value))
            });
            let field = if path == "." { prefix.to_owned() } else { format!("{prefix}.{path}") };
            file.error(line, format!("{field}: {what}"))
        })
    }

    fn no_effect(&mut self, file: &File<'_>, entry: &Entry, place: &str, prefix: &str) -> Result<(), ManifestError> {
        if !is_without_effect(place, &entry.key) {
            return Err(unknown(file, entry, place));
        }
        if !UNREMARKABLE.contains(&entry.key.as_str()) {
            let at = file.at(entry.line);
            self.warnings.push(format!("{at}: {prefix}{} has no effect here", entry.key));
        }
        Ok(())
    }
}

fn is_without_effect(place: &str, key: &str) -> bool {
    WITHOUT_EFFECT.iter().any(|(known, keys)| *known == place && keys.contains(&key))
}

fn unknown(file: &File<'_>, entry: &Entry, place: &str) -> ManifestError {
    file.error(entry.line, format!("{}: a {place} has no such field", entry.key))
}
