//! `/openapi.json`: what a node can be asked and what it answers, for tools. Made anew for each request, as it is asked
//! for once in a while; answers nothing else.
//!
//! The operations stand in `operations.rs`; their HEAD and OPTIONS and the further names of a path follow from the
//! table of routes.

mod forms;
mod operations;

use axum::Json;
use utoipa::openapi::path::{HttpMethod, Operation, OperationBuilder, Parameter, PathItem, PathsBuilder};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::tag::TagBuilder;
use utoipa::openapi::{
    Components, ComponentsBuilder, ContentBuilder, HeaderBuilder, InfoBuilder, OpenApi, OpenApiBuilder, Ref, RefOr,
    ResponseBuilder, Schema,
};
use utoipa::{PartialSchema, ToSchema};

use super::error::Envelope;
use super::routes;
use crate::downstream::Order;
use crate::fault;
use crate::health::Mode;
use crate::manifest::Policy;
use crate::wire::{FaultSpec, Reply};
use forms::{Allowed, Data, Done, Health, HealthJson, VertxHealth};

/// The name of the one way to prove who one is.
const TOKEN: &str = "control-token";

const TAGS: [(&str, &str); 5] = [
    ("business", "The node's work. Faults are injected here and nowhere else."),
    ("probes", "What orchestrators ask: 200 or 503. Never need a token, never subject to injected faults."),
    ("wrong probes", "Probes as they should not be, on purpose."),
    ("control", "Changes how the node behaves; with --control-listen, at an address of its own."),
    ("observation", "Shows how the node is; with --control-listen, at an address of its own."),
];

pub(super) async fn document() -> Json<OpenApi> {
    Json(build())
}

fn build() -> OpenApi {
    let info = InfoBuilder::new().title("rest-cascade").version(env!("CARGO_PKG_VERSION")).description(Some(
        "One node of a cascade. Every path may end with a slash. With --control-listen, control and observation \
             are at an address of their own, and what changes the node is 403 at the other one.",
    ));
    let tags = TAGS.map(|(name, why)| TagBuilder::new().name(name).description(Some(why)).build());
    OpenApiBuilder::new().info(info.build()).tags(Some(tags)).paths(paths()).components(Some(components())).build()
}

fn paths() -> PathsBuilder {
    let mut paths = PathsBuilder::new();
    for (path, method, operation) in operations::all() {
        let head = (method == HttpMethod::Get).then(|| without_body(&operation));
        // One path item for each method: the builder puts those of one path together.
        paths = paths.path(path, PathItem::new(method, operation));
        if let Some(head) = head {
            paths = paths.path(path, PathItem::new(HttpMethod::Head, head));
        }
    }
    let mut paths = paths.build();
    for names in routes::paths() {
        let Some(item) = paths.paths.get_mut(names[0]) else { continue };
        item.options = Some(options(names[0]));
        let mut item = item.clone();
        let operations =
            [&mut item.get, &mut item.head, &mut item.options, &mut item.put, &mut item.post, &mut item.delete];
        for operation in operations.into_iter().flatten() {
            // An id is for one path alone.
            operation.operation_id = None;
            operation.summary = Some(format!("As {}", names[0]));
        }
        paths.paths.extend(names[1..].iter().map(|name| ((*name).to_owned(), item.clone())));
    }
    paths.into()
}

/// HEAD, to a GET.
fn without_body(get: &Operation) -> Operation {
    let mut head = get.clone();
    head.operation_id = get.operation_id.as_ref().map(|id| format!("{id}-head"));
    head.summary = Some("The head of the answer to GET; never changes anything".to_owned());
    // A HEAD turns no switch: it is not asked who it is, and what it says of the switch is not looked at.
    if head.security.take().is_some() {
        let stays = |own: &RefOr<Parameter>| matches!(own, RefOr::T(parameter) if parameter.name == "format");
        head.parameters.iter_mut().for_each(|parameters| parameters.retain(stays));
        head.responses.responses.retain(|status, _| !["401", "403"].contains(&status.as_str()));
    }
    for response in head.responses.responses.values_mut() {
        if let RefOr::T(response) = response {
            response.content.clear();
        }
    }
    head
}

fn options(path: &str) -> Operation {
    let allow = HeaderBuilder::new().schema(Some(String::schema())).description(Some("The methods of this path"));
    let response = ResponseBuilder::new()
        .description("The methods that this path takes")
        .header("allow", allow.build())
        .content("application/json", ContentBuilder::new().schema(Some(reference::<Allowed>())).build());
    let tag = operations::all().into_iter().find(|(own, ..)| *own == path).and_then(|(.., operation)| operation.tags);
    OperationBuilder::new()
        .operation_id(Some(format!("options{}", path.replace('/', "-"))))
        .tags(tag)
        .summary(Some("The methods that this path takes"))
        .response("200", response)
        .build()
}

/// Where the schema of `T` is found.
fn reference<T: ToSchema>() -> Ref {
    Ref::from_schema_name(T::name())
}

fn components() -> Components {
    let token = HttpBuilder::new()
        .scheme(HttpAuthScheme::Bearer)
        .description(Some("The token of --control-token; where the node has none, none is asked for"));
    let mut schemas = Vec::new();
    add::<Reply>(&mut schemas);
    add::<Envelope>(&mut schemas);
    add::<Health>(&mut schemas);
    add::<VertxHealth>(&mut schemas);
    add::<HealthJson>(&mut schemas);
    add::<Done>(&mut schemas);
    add::<Data>(&mut schemas);
    add::<Allowed>(&mut schemas);
    add::<Mode>(&mut schemas);
    add::<FaultSpec>(&mut schemas);
    add::<fault::Report>(&mut schemas);
    add::<Policy>(&mut schemas);
    add::<Order>(&mut schemas);
    ComponentsBuilder::new()
        .schemas_from_iter(schemas)
        .security_scheme(TOKEN, SecurityScheme::Http(token.build()))
        .build()
}

/// The schema of `T`, and those that it refers to.
fn add<T: ToSchema>(schemas: &mut Vec<(String, RefOr<Schema>)>) {
    schemas.push((T::name().into_owned(), T::schema()));
    T::schemas(schemas);
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use serde_json::Value;

    use super::*;

    fn as_text() -> Value {
        serde_json::to_value(build()).expect("plain data")
    }

    /// Methods by path, in capitals.
    fn described(document: &Value) -> BTreeMap<String, BTreeSet<String>> {
        let paths = document["paths"].as_object().expect("paths");
        paths
            .iter()
            .map(|(path, item)| {
                let methods = item.as_object().expect("an item").keys().map(|method| method.to_ascii_uppercase());
                (path.clone(), methods.collect())
            })
            .collect()
    }

    #[test]
    fn the_document_describes_the_table_of_routes_and_nothing_else() {
        let mut table: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (paths, allow) in routes::allowed() {
            for path in paths {
                let methods = allow.split(", ").map(str::to_owned).collect();
                assert_eq!(table.insert((*path).to_owned(), methods), None, "{path} is in the table twice");
            }
        }
        assert!(table.contains_key("/openapi.json") && table.len() > 20, "{table:?}");
        assert_eq!(described(&as_text()), table);
    }

    #[test]
    fn every_operation_tells_what_it_answers_and_has_an_id_of_its_own() {
        let document = as_text();
        assert_eq!(document["openapi"], "3.1.0");
        let mut ids = BTreeSet::new();
        for (path, item) in document["paths"].as_object().expect("paths") {
            for (method, operation) in item.as_object().expect("an item") {
                assert!(operation["summary"].as_str().is_some_and(|text| !text.is_empty()), "{method} {path}");
                assert!(operation["responses"].get("200").is_some(), "{method} {path}");
                let tag = operation["tags"][0].as_str().expect("a tag");
                assert!(TAGS.iter().any(|(name, _)| *name == tag), "{method} {path}: {tag}");
                if let Some(id) = operation.get("operationId") {
                    assert!(ids.insert(id.to_string()), "{method} {path}: {id} is given twice");
                }
            }
        }
    }

    #[test]
    fn the_document_reads_back_and_every_reference_leads_somewhere() {
        let document = as_text();
        let again: OpenApi = serde_json::from_str(&document.to_string()).expect("an OpenAPI document");
        assert_eq!(again.paths.paths.len(), document["paths"].as_object().map_or(0, serde_json::Map::len));
        let mut references = BTreeSet::new();
        collect(&document, &mut references);
        for reference in &references {
            let pointer = reference.strip_prefix('#').expect("nothing outside of the document");
            assert!(document.pointer(pointer).is_some(), "{reference} leads nowhere");
        }
        let schemas = document["components"]["schemas"].as_object().expect("schemas");
        let unused: Vec<_> =
            schemas.keys().filter(|name| !references.contains(&format!("#/components/schemas/{name}"))).collect();
        assert_eq!(unused, Vec::<&String>::new(), "nobody refers to these");
    }

    fn collect(value: &Value, references: &mut BTreeSet<String>) {
        match value {
            Value::Object(members) => {
                references.extend(members.get("$ref").and_then(Value::as_str).map(str::to_owned));
                members.values().for_each(|value| collect(value, references));
            }
            Value::Array(values) => values.iter().for_each(|value| collect(value, references)),
            _ => {}
        }
    }
}
