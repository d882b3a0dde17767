//! Asks a process over HTTP, and tells it things: what anybody with curl could do.

use std::time::Duration;

use reqwest::StatusCode;
use serde_json::Value;
use thiserror::Error;

use super::Cluster;

/// Why there is no answer, or none that was asked for.
#[derive(Debug, Error)]
pub enum AskError {
    #[error("{url}: {error}")]
    Http { url: String, error: reqwest::Error },
    #[error("{url} answered {status}: {text}")]
    Refused { url: String, status: StatusCode, text: String },
}

impl Cluster {
    /// What `url` answers, within `limit`, whatever the status.
    ///
    /// # Errors
    /// If no whole answer comes.
    pub async fn get(&self, url: &str, limit: Duration) -> Result<(StatusCode, Vec<u8>), AskError> {
        let failed = |error| AskError::Http { url: url.to_owned(), error };
        let answer = self.client.get(url).timeout(limit).send().await.map_err(failed)?;
        let status = answer.status();
        Ok((status, answer.bytes().await.map_err(failed)?.to_vec()))
    }

    /// The JSON that `url` answers.
    ///
    /// # Errors
    /// If none comes, or with another status than 2xx.
    pub async fn get_json(&self, url: &str, limit: Duration) -> Result<Value, AskError> {
        let request = self.client.get(url).timeout(limit);
        self.json(url, request).await
    }

    /// Puts JSON to `url`; what it answers.
    ///
    /// # Errors
    /// As [`Cluster::get_json`].
    pub async fn put_json(&self, url: &str, json: &Value, limit: Duration) -> Result<Value, AskError> {
        let request = self.client.put(url).json(json).timeout(limit);
        self.json(url, request).await
    }

    async fn json(&self, url: &str, request: reqwest::RequestBuilder) -> Result<Value, AskError> {
        let failed = |error| AskError::Http { url: url.to_owned(), error };
        let answer = request.send().await.map_err(failed)?;
        let status = answer.status();
        if !status.is_success() {
            let text = answer.text().await.unwrap_or_default();
            return Err(AskError::Refused { url: url.to_owned(), status, text });
        }
        answer.json().await.map_err(failed)
    }
}
