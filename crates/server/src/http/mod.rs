//! The plain HTTP endpoints, with etcd's paths, texts and codes.

pub mod health;

use std::sync::Arc;

use bytes::Bytes;
use http::header::{self, HeaderName, HeaderValue};
use http::{Method, Response, StatusCode, Uri};
use http_body_util::Full;

use self::health::{Check, Health};
use crate::admin::Admin;
use crate::auth::Claim;
use crate::config::Config;
use crate::limits;
use crate::metrics::Metrics;
use crate::version::{ETCD_CLUSTER_VERSION, ETCD_VERSION};

/// An answer, complete.
pub type HttpResponse = Response<Full<Bytes>>;

/// Which endpoints a listener has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Surface {
    /// Everything.
    Client,
    /// `/metrics` and health: often open to all, so nothing here names a key.
    Metrics,
    /// `/version` and `/members`; the rest of what peers say is gRPC.
    Peer,
}

/// The parts of a request that the endpoints look at. They take no body.
pub struct HttpRequest<'a> {
    /// GET for nearly all.
    pub method: &'a Method,
    /// Path and query.
    pub uri: &'a Uri,
    /// `Host`, or HTTP/2's authority.
    pub host: &'a str,
    /// `Origin`, if a browser sends it.
    pub origin: Option<&'a str>,
    /// Whether the connection is encrypted.
    pub tls: bool,
    /// Whose request it is.
    pub claim: Claim,
}

/// Everything that answers plain HTTP requests.
pub struct Endpoints {
    health: Arc<dyn Health>,
    admin: Option<Admin>,
    metrics: Arc<Metrics>,
    cors: Vec<String>,
    host_whitelist: Vec<String>,
}

impl Endpoints {
    /// Endpoints over the node's health and metrics.
    pub fn new(config: &Config, health: Arc<dyn Health>, metrics: Arc<Metrics>) -> Endpoints {
        Endpoints {
            health,
            admin: None,
            metrics,
            cors: config.cors.clone(),
            host_whitelist: config.host_whitelist.clone(),
        }
    }

    /// Also tells of the cluster.
    #[must_use]
    pub fn reporting(self, admin: Admin) -> Endpoints {
        Endpoints { admin: Some(admin), ..self }
    }

    /// Answers one request.
    pub async fn call(&self, surface: Surface, request: HttpRequest<'_>) -> HttpResponse {
        if surface != Surface::Client {
            return self.route(surface, &request).await;
        }
        match self.precheck(&request) {
            Some(response) => response,
            None => self.shared(request.origin, self.route(surface, &request).await),
        }
    }

    /// Answers a request of a client that goes no further: it is for a host that is not allowed, or a browser only asks
    /// whether it may send one.
    pub fn precheck(&self, request: &HttpRequest<'_>) -> Option<HttpResponse> {
        if !request.tls && !self.host_allowed(request.host) {
            tracing::warn!(host = request.host, "rejecting HTTP request to prevent DNS rebinding attacks");
            return Some(error(StatusCode::MISDIRECTED_REQUEST, &rebinding(request.host)));
        }
        (request.method == Method::OPTIONS).then(|| self.shared(request.origin, Response::new(Full::default())))
    }

    /// Says to browsers whether pages of that origin may see the answer.
    pub fn shared<B>(&self, origin: Option<&str>, mut response: Response<B>) -> Response<B> {
        let origin = match origin {
            _ if self.origin_allowed("*") => Some("*"),
            Some(origin) if self.origin_allowed(origin) => Some(origin),
            _ => None,
        };
        if let Some(origin) = origin.and_then(|origin| HeaderValue::from_str(origin).ok()) {
            for (name, value) in [
                (header::ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static("accept, content-type, authorization")),
                (header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("POST, GET, OPTIONS, PUT, DELETE")),
                (header::ACCESS_CONTROL_ALLOW_ORIGIN, origin),
            ] {
                response.headers_mut().insert(name, value);
            }
        }
        response
    }

    async fn route(&self, surface: Surface, request: &HttpRequest<'_>) -> HttpResponse {
        let path = request.uri.path();
        let query = health::Query::of(request.uri);
        match (surface, path) {
            (Surface::Client | Surface::Peer, "/version") => get(request, || self.version()),
            (Surface::Client | Surface::Metrics, "/metrics") => self.metrics_text(),
            (Surface::Client, "/debug/vars") => get(request, vars),
            (Surface::Client | Surface::Metrics, "/health") => {
                if request.method != Method::GET {
                    tracing::warn!("status-code" = 405, "/health error");
                    return not_allowed();
                }
                let health = health::health(&*self.health, &query).await;
                self.health_response(&health)
            }
            (Surface::Client, "/eddy/v1/status") => self.tell_user(request, false, Admin::status_json),
            (Surface::Client, "/eddy/v1/merges") => self.tell_user(request, true, Admin::merges_json),
            (Surface::Peer, "/members") => self.members(request),
            (Surface::Client | Surface::Metrics, path) => match Check::find(path) {
                Some(_) if request.method != Method::GET => {
                    tracing::warn!(path, "status-code" = 405, "Health request error");
                    not_allowed()
                }
                Some((kind, checks)) => self.checks(path, kind, &checks, &query).await,
                None => not_found(),
            },
            (Surface::Peer, _) => not_found(),
        }
    }

    /// Tells users, or only root.
    fn tell_user(
        &self,
        request: &HttpRequest<'_>,
        only_root: bool,
        what: impl FnOnce(&Admin) -> serde_json::Value,
    ) -> HttpResponse {
        match self.admin.as_ref().map(|admin| admin.permits(&request.claim, only_root)) {
            Some(Err(denied)) if denied.code() == tonic::Code::PermissionDenied => {
                error(StatusCode::FORBIDDEN, denied.message())
            }
            Some(Err(denied)) => error(StatusCode::UNAUTHORIZED, denied.message()),
            _ => self.tell(request, what),
        }
    }

    fn tell(&self, request: &HttpRequest<'_>, what: impl FnOnce(&Admin) -> serde_json::Value) -> HttpResponse {
        match &self.admin {
            Some(admin) => get(request, || with_type(StatusCode::OK, format!("{}\n", what(admin)), JSON)),
            None => not_found(),
        }
    }

    fn members(&self, request: &HttpRequest<'_>) -> HttpResponse {
        let mut response = self.tell(request, Admin::members_json);
        let cluster = self.admin.as_ref().and_then(|admin| HeaderValue::from_str(&admin.cluster_id()).ok());
        if let Some(cluster) = cluster {
            response.headers_mut().insert(HeaderName::from_static("x-etcd-cluster-id"), cluster);
        }
        response
    }

    fn health_response(&self, reason: &Result<(), String>) -> HttpResponse {
        let (word, text) = match reason {
            Ok(()) => ("true", ""),
            Err(text) => ("false", text.as_str()),
        };
        let body = format!("{{\"health\":\"{word}\",\"reason\":{}}}", serde_json::Value::from(text));
        if reason.is_ok() {
            self.metrics.health_success.inc();
            return with_type(StatusCode::OK, body, TEXT);
        }
        self.metrics.health_failures.inc();
        tracing::warn!(output = body, "status-code" = 503, "/health error");
        error(StatusCode::SERVICE_UNAVAILABLE, &body)
    }

    async fn checks(&self, path: &str, kind: &'static str, checks: &[Check], query: &health::Query) -> HttpResponse {
        let root = path.matches('/').count() == 1;
        let mut lines = String::new();
        let mut good = true;
        for check in checks {
            if root && query.excludes(check.name()) {
                continue;
            }
            let result = check.run(&*self.health).await;
            let status = if result.is_ok() { "success" } else { "error" };
            self.metrics.healthcheck.with_label_values(&[kind, check.name()]).set(i64::from(result.is_ok()));
            self.metrics.healthchecks.with_label_values(&[kind, check.name(), status]).inc();
            match result {
                Ok(()) if check.only_when_failing() && root => {}
                Ok(()) => lines.push_str(&format!("[+]{} ok\n", check.name())),
                Err(reason) => {
                    good = false;
                    lines.push_str(&format!("[-]{} failed: {reason}\n", check.name()));
                }
            }
        }
        if !good {
            tracing::error!(path, reason = lines, "status-code" = 503, "Health check error");
            return error(StatusCode::SERVICE_UNAVAILABLE, &lines);
        }
        let body = if query.has("verbose") { format!("{lines}ok\n") } else { "ok\n".to_owned() };
        nosniff(with_type(StatusCode::OK, body, TEXT))
    }

    fn version(&self) -> HttpResponse {
        let body = format!(
            "{{\"etcdserver\":\"{ETCD_VERSION}\",\"etcdcluster\":\"{ETCD_CLUSTER_VERSION}\",\"storage\":\"{ETCD_CLUSTER_VERSION}\"}}"
        );
        with_type(StatusCode::OK, body, JSON)
    }

    fn metrics_text(&self) -> HttpResponse {
        self.health.refresh(&self.metrics);
        self.metrics.scrapes_in_flight.inc();
        let text = self.metrics.text();
        self.metrics.scrapes_in_flight.dec();
        let (code, response) = match text {
            Ok(text) => ("200", with_type(StatusCode::OK, text, "text/plain; version=0.0.4; charset=utf-8")),
            Err(err) => ("500", error(StatusCode::INTERNAL_SERVER_ERROR, &err.to_string())),
        };
        self.metrics.scrapes.with_label_values(&[code]).inc();
        response
    }

    fn host_allowed(&self, host: &str) -> bool {
        let name = match host.strip_prefix('[') {
            Some(rest) => rest.split(']').next().unwrap_or(rest),
            None => host.rsplit_once(':').map_or(host, |(name, _)| name),
        };
        self.host_whitelist.is_empty() || self.host_whitelist.iter().any(|allowed| allowed == "*" || allowed == name)
    }

    fn origin_allowed(&self, origin: &str) -> bool {
        self.cors.is_empty() || self.cors.iter().any(|allowed| allowed == "*" || allowed == origin)
    }
}

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";

fn vars() -> HttpResponse {
    let args: Vec<String> = std::env::args().collect();
    let limit = limits::open_files().unwrap_or(u64::MAX);
    let body = serde_json::json!({ "cmdline": args, "file_descriptor_limit": limit }).to_string();
    with_type(StatusCode::OK, body, "application/json; charset=utf-8")
}

fn get(request: &HttpRequest<'_>, answer: impl FnOnce() -> HttpResponse) -> HttpResponse {
    if request.method == Method::GET { answer() } else { not_allowed() }
}

fn not_found() -> HttpResponse {
    error(StatusCode::NOT_FOUND, "404 page not found")
}

fn not_allowed() -> HttpResponse {
    let mut response = error(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed");
    response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET"));
    response
}

/// Go's `http.Error`: text with a newline.
pub fn error(code: StatusCode, text: &str) -> HttpResponse {
    nosniff(with_type(code, format!("{text}\n"), TEXT))
}

fn nosniff(mut response: HttpResponse) -> HttpResponse {
    response
        .headers_mut()
        .insert(HeaderName::from_static("x-content-type-options"), HeaderValue::from_static("nosniff"));
    response
}

fn with_type(code: StatusCode, body: impl Into<Bytes>, kind: &'static str) -> HttpResponse {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = code;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

fn rebinding(host: &str) -> String {
    format!(
        "\neddy received your request, but the Host header was unrecognized.\n\n\
         Either enable TLS, which allows any host name, or add it: --host-whitelist {host:?}\n\n\
         This protects against DNS rebinding (CVE-2018-5702).\n"
    )
}
