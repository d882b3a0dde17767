//! The one error envelope: JSON that names the host and says what is wrong.

use axum::Json;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::Node;
use super::inject::Refusal;

/// An answer that is not what was asked for.
#[derive(Debug)]
pub(super) struct Problem {
    status: StatusCode,
    host: String,
    error: String,
}

/// Whatever is refused, and why.
#[derive(Serialize, ToSchema)]
pub(super) struct Envelope<'a> {
    host: &'a str,
    status: u16,
    error: &'a str,
}

impl Problem {
    pub(super) fn new(node: &Node, status: StatusCode, error: impl Into<String>) -> Problem {
        Problem { status, host: node.name().to_owned(), error: error.into() }
    }

    /// The answer of a business route that does not do its work.
    pub(super) fn refuse(node: &Node, _: &HeaderMap, refusal: Refusal) -> Response {
        let Refusal { reason, status, sentence, .. } = refusal;
        Problem::new(node, status, format!("{reason}: {sentence}")).into_response()
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let envelope = Envelope { host: &self.host, status: self.status.as_u16(), error: &self.error };
        (self.status, Json(envelope)).into_response()
    }
}
