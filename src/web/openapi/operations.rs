//! What each path of the table does: its parameters, its body, its answers.

use serde_json::json;
use utoipa::openapi::path::{HttpMethod, Operation, OperationBuilder, ParameterBuilder, ParameterIn};
use utoipa::openapi::request_body::RequestBodyBuilder;
use utoipa::openapi::schema::{AnyOfBuilder, KnownFormat, ObjectBuilder, SchemaFormat, Type};
use utoipa::openapi::security::SecurityRequirement;
use utoipa::openapi::{ContentBuilder, HeaderBuilder, RefOr, Required, ResponseBuilder, Schema};
use utoipa::{PartialSchema, ToSchema};

use super::forms::{Data, Done, Health, HealthJson, VertxHealth};
use super::{TOKEN, reference};
use crate::downstream::Order;
use crate::fault;
use crate::health::Mode;
use crate::manifest::Policy;
use crate::web::error::Envelope;
use crate::wire::{FaultSpec, Reply};
use HttpMethod::{Delete, Get, Post, Put};

const JSON: &str = "application/json";
const HEALTH_JSON: &str = "application/health+json";
const OPEN_METRICS: &str = "application/openmetrics-text";

/// All operations but HEAD and OPTIONS, by the first name of their path.
pub(super) fn all() -> Vec<(&'static str, HttpMethod, Operation)> {
    vec![
        ("/", Get, cascade()),
        ("/work", Get, work()),
        ("/data", Get, data()),
        ("/live", Get, probe("live", "Whether this process is alive; asks nobody else").0.build()),
        ("/ready", Get, probe("ready", "Whether the node is loaded, not draining, and what it needs is up").0.build()),
        ("/startup", Get, startup()),
        ("/startup", Put, finish("startup-put")),
        ("/startup", Post, finish("startup-post")),
        ("/wrong/live", Get, wrong("live", "A dependency in the liveness probe").0.build()),
        ("/wrong/blocking", Get, blocking()),
        ("/wrong/no-timeout", Get, wrong("no-timeout", "A check without a time-out").0.build()),
        ("/wrong/shallow", Get, wrong("shallow", "A check that looks at nothing").0.build()),
        ("/wrong/leaky", Get, wrong("leaky", "A new connection for each check, never closed").0.build()),
        ("/faults", Get, faults()),
        ("/faults", Put, inject("faults-put")),
        ("/faults", Post, inject("faults-post")),
        ("/faults", Delete, clear()),
        ("/policy", Get, policy()),
        ("/policy", Put, set_policy("policy-put")),
        ("/policy", Post, set_policy("policy-post")),
        ("/downstream", Get, downstream()),
        ("/downstream", Post, order()),
        ("/db", Get, database("database")),
        ("/db", Put, turn("database-put")),
        ("/db", Post, turn("database-post")),
        ("/config", Get, config()),
        ("/metrics", Get, metrics()),
        ("/openapi.json", Get, document()),
    ]
}

fn cascade() -> Operation {
    let header = |name, why| (name, HeaderBuilder::new().schema(Some(String::schema())).description(Some(why)).build());
    let headers = [
        header("x-correlation-id", "The caller's, or a new one"),
        header("cascade-status", "complete or partial"),
        header("cascade-depth", "How many nodes answered"),
        header("cascade-reason", "Why the cascade ended early and where, as in: refused; hop=3"),
        header("server-timing", "Where the time went"),
    ];
    let answer =
        |why| headers.iter().fold(json_of::<Reply>(why), |answer, (name, header)| answer.header(*name, header.clone()));
    Op::new("business", "cascade", "Calls the next node, if there is one, and nests its answer")
        .about("The query goes on to the next node as it is.")
        .header("x-correlation-id", "Shown and passed on at every hop", text())
        .header("x-request-id", "Taken where there is no x-correlation-id", text())
        .header("x-envoy-expected-rq-timeout-ms", "What the caller has left, in milliseconds", text())
        .answers("200", answer("The answer, whole or partial: the header cascade-status tells"))
        .answers("default", answer("What --on-failure or an injected fault makes of it"))
        .0
        .build()
}

fn work() -> Operation {
    let ok = ContentBuilder::new().schema(Some(String::schema())).example(Some(json!("ok\n"))).build();
    Op::new("business", "work", "Work without the database")
        .answers("200", ResponseBuilder::new().description("Done").content("text/plain", ok))
        .answers("default", json_of::<Envelope>("An injected fault"))
        .0
        .build()
}

fn data() -> Operation {
    Op::new("business", "data", "Work with the database: one query over the pool")
        .query("ms", "How long the query keeps its connection", whole(60_000))
        .answers("200", json_of::<Data>("Done"))
        .problem("400", "Another parameter, or a value out of its range")
        .problem("503", "The node is loading, or the database does not answer, or the pool is used up")
        .answers("default", json_of::<Envelope>("An injected fault"))
        .0
        .build()
}

fn probe(id: &str, summary: &str) -> Op {
    Op::new("probes", id, summary).form().answers("200", report("UP", false)).answers("503", report("DOWN", false))
}

fn startup() -> Operation {
    Op::new("probes", "startup", "Whether the node is loaded; with done, says so")
        .form()
        .query("done", "Ends or begins the loading; this changes the node", boolean())
        .answers("200", report("UP, or what done has become", true))
        .answers("503", report("DOWN", false))
        .problem("400", "done is neither true nor false")
        .guarded()
        .0
        .build()
}

fn finish(id: &str) -> Operation {
    Op::new("probes", id, "Ends or begins the loading")
        .about("By the query or by the body, not by both.")
        .query("done", "Whether the node is loaded", boolean())
        .body(reference::<Done>(), Required::False)
        .answers("200", json_of::<Done>("As it is now"))
        .problem("400", "Not understood, or done is missing")
        .problem("413", "The body is too long")
        .guarded()
        .0
        .build()
}

fn wrong(id: &str, summary: &str) -> Op {
    let header = || HeaderBuilder::new().schema(Some(String::schema())).description(Some("Why it is wrong")).build();
    let labelled = |status| report(status, false).header("x-rest-cascade-wrong", header());
    Op::new("wrong probes", &format!("wrong-{id}"), summary)
        .form()
        .answers("200", labelled("UP"))
        .answers("503", labelled("DOWN"))
}

fn blocking() -> Operation {
    wrong("blocking", "A check that blocks its worker thread")
        .query("ms", "For how long; 300 unless given", whole(60_000))
        .problem("400", "Another parameter, or a value out of its range")
        .0
        .build()
}

fn faults() -> Operation {
    Op::new(
        "control",
        "faults",
        "The faults in force, and what became of them; with a query, puts in force what it asks",
    )
    .answers("200", json_of::<fault::Report>("The faults"))
    .problem("400", "Not understood, out of range or contradictory: names member, value and limit")
    .problem("503", "There is not so much memory as hold_mib asks for")
    .guarded()
    .0
    .build()
}

fn inject(id: &str) -> Operation {
    Op::new("control", id, "Puts faults in force, in place of those that are")
        .body(reference::<FaultSpec>(), Required::True)
        .answers("200", json_of::<fault::Report>("They are in force"))
        .problem("400", "Not understood, out of range or contradictory: names member, value and limit")
        .problem("413", "The body is too long")
        .problem("503", "There is not so much memory as hold_mib asks for")
        .guarded()
        .0
        .build()
}

fn clear() -> Operation {
    Op::new("control", "faults-delete", "Ends all faults")
        .answers("200", json_of::<fault::Report>("There are none"))
        .guarded()
        .0
        .build()
}

fn policy() -> Operation {
    Op::new(
        "control",
        "policy",
        "How calls to the next node are limited, timed, retried and steered, in Istio's fields",
    )
    .answers("200", json_of::<Policy>("The policy"))
    .0
    .build()
}

fn set_policy(id: &str) -> Operation {
    Op::new("control", id, "Replaces the whole policy; connections and the endpoints' records stay")
        .body(reference::<Policy>(), Required::True)
        .answers("200", json_of::<Policy>("It is in force"))
        .problem("400", "Not understood or out of range: names member, value and limit")
        .problem("413", "The body is too long")
        .guarded()
        .0
        .build()
}

fn downstream() -> Operation {
    let any = ObjectBuilder::new().schema_type(Type::Object);
    Op::new("control", "downstream", "The pool, the endpoints and their states, and what happened to them lately")
        .answers("200", content("Gauges, endpoints, events", JSON, any))
        .0
        .build()
}

fn order() -> Operation {
    let any = ObjectBuilder::new().schema_type(Type::Object);
    Op::new("control", "downstream-post", "Ejects or returns an endpoint by hand")
        .body(reference::<Order>(), Required::True)
        .answers("200", content("It is done", JSON, any))
        .problem("400", "Not understood")
        .problem("404", "No such endpoint")
        .problem("409", "It is so already")
        .guarded()
        .0
        .build()
}

fn database(id: &str) -> Operation {
    switch(id, "What the simulated database does; with a query, tells it").0.build()
}

fn turn(id: &str) -> Operation {
    let up = ObjectBuilder::new().property("up", boolean()).required("up");
    let wish = AnyOfBuilder::new().item(up).item(reference::<Mode>());
    switch(id, "Tells the simulated database what to do")
        .about("By the query or by the body, not by both.")
        .body(RefOr::from(wish), Required::False)
        .problem("413", "The body is too long")
        .0
        .build()
}

fn switch(id: &str, summary: &str) -> Op {
    Op::new("control", id, summary)
        .query("up", "Up or down; stands alone", boolean())
        .query("csdl", "The same, as the article has it", boolean())
        .query("mode", "What it is to do", one_of(&["up", "down", "hang", "slow", "flaky"]))
        .query("ms", "How slow; with mode=slow alone", whole(60_000))
        .query("p", "How often it fails; with mode=flaky alone", share())
        .answers("200", json_of::<Mode>("As it is now"))
        .problem("400", "Not understood, out of range or contradictory")
        .problem("409", "The database is a real one")
        .guarded()
}

fn config() -> Operation {
    let settings = ObjectBuilder::new().description(Some("By the name of the flag; secrets are hidden"));
    Op::new("observation", "config", "All effective settings")
        .answers("200", content("The settings", JSON, RefOr::from(settings)))
        .0
        .build()
}

fn metrics() -> Operation {
    Op::new("observation", "metrics", "Counters and gauges for Prometheus")
        .answers("200", content("The metrics", OPEN_METRICS, text()))
        .0
        .build()
}

fn document() -> Operation {
    Op::new("observation", "openapi", "This document")
        .answers("200", content("An OpenAPI document", JSON, RefOr::from(ObjectBuilder::new())))
        .0
        .build()
}

/// One operation under construction.
struct Op(OperationBuilder);

impl Op {
    fn new(tag: &str, id: &str, summary: &str) -> Op {
        Op(OperationBuilder::new().tag(tag).operation_id(Some(id)).summary(Some(summary)))
    }

    fn about(self, more: &str) -> Op {
        Op(self.0.description(Some(more)))
    }

    fn query(self, name: &str, why: &str, schema: RefOr<Schema>) -> Op {
        self.parameter(ParameterIn::Query, name, why, schema)
    }

    fn header(self, name: &str, why: &str, schema: RefOr<Schema>) -> Op {
        self.parameter(ParameterIn::Header, name, why, schema)
    }

    fn parameter(self, place: ParameterIn, name: &str, why: &str, schema: RefOr<Schema>) -> Op {
        let parameter = ParameterBuilder::new().name(name).parameter_in(place).required(Required::False);
        Op(self.0.parameter(parameter.description(Some(why)).schema(Some(schema))))
    }

    /// A report can be had in several forms.
    fn form(self) -> Op {
        // No enum: a word that is not known is no reason to refuse a probe.
        self.query("format", "microprofile, vertx or health+json; anything else is as nothing", text())
    }

    fn body(self, schema: impl Into<RefOr<Schema>>, required: Required) -> Op {
        let content = ContentBuilder::new().schema(Some(schema)).build();
        let body = RequestBodyBuilder::new().content(JSON, content).required(Some(required));
        Op(self.0.request_body(Some(body.build())))
    }

    fn answers(self, status: &str, response: ResponseBuilder) -> Op {
        Op(self.0.response(status, response))
    }

    fn problem(self, status: &str, why: &str) -> Op {
        self.answers(status, json_of::<Envelope>(why))
    }

    /// What changes the node; where it has no token, none is asked for.
    fn guarded(self) -> Op {
        let op = self
            .problem("401", "The token of --control-token is missing or wrong")
            .problem("403", "A page of another site asks, or it is not done at this address but at --control-listen");
        let either = [SecurityRequirement::default(), SecurityRequirement::new::<_, [&str; 0], &str>(TOKEN, [])];
        Op(op.0.securities(Some(either)))
    }
}

fn content(why: &str, kind: &str, schema: impl Into<RefOr<Schema>>) -> ResponseBuilder {
    ResponseBuilder::new().description(why).content(kind, ContentBuilder::new().schema(Some(schema)).build())
}

fn json_of<T: ToSchema>(why: &str) -> ResponseBuilder {
    content(why, JSON, reference::<T>())
}

/// A probe's answer in any of its forms; `or_done` where it may be that of a switch.
fn report(why: &str, or_done: bool) -> ResponseBuilder {
    let any = AnyOfBuilder::new().item(reference::<Health>()).item(reference::<VertxHealth>());
    let any = if or_done { any.item(reference::<Done>()) } else { any };
    let other = ContentBuilder::new().schema(Some(reference::<HealthJson>())).build();
    content(why, JSON, RefOr::from(any)).content(HEALTH_JSON, other)
}

fn text() -> RefOr<Schema> {
    String::schema()
}

fn boolean() -> RefOr<Schema> {
    bool::schema()
}

fn whole(maximum: u32) -> RefOr<Schema> {
    let number = ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(0)).maximum(Some(maximum));
    number.format(Some(SchemaFormat::KnownFormat(KnownFormat::Int32))).into()
}

fn share() -> RefOr<Schema> {
    ObjectBuilder::new().schema_type(Type::Number).minimum(Some(0)).maximum(Some(1)).into()
}

fn one_of(words: &[&str]) -> RefOr<Schema> {
    ObjectBuilder::new().schema_type(Type::String).enum_values(Some(words.iter().copied())).into()
}
