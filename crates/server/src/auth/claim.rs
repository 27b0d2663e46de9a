//! What a call shows of its user.

use std::sync::Arc;

use http::{Extensions, HeaderMap};
use tonic::metadata::MetadataMap;

/// The common name of the certificate that a client showed, as an extension of its requests.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CommonName(pub Arc<str>);

/// What a call shows of its user: a token, or a certificate.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Claim {
    pub(super) token: Option<String>,
    pub(super) common_name: Option<Arc<str>>,
}

fn token_of(shown: impl AsRef<[u8]>) -> String {
    let token = String::from_utf8_lossy(shown.as_ref());
    token.strip_prefix("Bearer ").unwrap_or(&token).to_owned()
}

impl Claim {
    /// Reads the metadata and the extensions of a call. One that was made for another call has that one's claim.
    pub fn of(metadata: &MetadataMap, extensions: &Extensions) -> Self {
        if let Some(claim) = extensions.get::<Self>() {
            return claim.clone();
        }
        // The second is what the header of a JSON request becomes.
        let shown = metadata.get("token").or_else(|| metadata.get("authorization"));
        let token = shown.map(|token| token_of(token.as_bytes()));
        // What came through a gateway comes from the gateway's certificate, which is nobody's.
        let direct = !metadata.contains_key("grpcgateway-accept");
        let common_name = extensions.get::<CommonName>().filter(|_| direct).map(|CommonName(name)| Arc::clone(name));
        Self { token, common_name }
    }

    /// The same for a request.
    pub fn in_request<T>(request: &tonic::Request<T>) -> Self {
        Self::of(request.metadata(), request.extensions())
    }

    /// The same for a plain HTTP request.
    pub fn of_http(headers: &HeaderMap, name: Option<&CommonName>) -> Self {
        let token = headers.get(http::header::AUTHORIZATION).map(token_of);
        Self { token, common_name: name.map(|CommonName(name)| Arc::clone(name)) }
    }

    /// A call that is made for the one with this claim.
    pub fn request<T>(&self, message: T) -> tonic::Request<T> {
        let mut request = tonic::Request::new(message);
        request.extensions_mut().insert(self.clone());
        request
    }
}

#[cfg(test)]
mod tests {
    use tonic::Request;

    use super::*;

    fn claim(metadata: &[(&'static str, &'static str)], name: Option<&str>) -> (Option<String>, Option<String>) {
        let mut request = Request::new(());
        for (key, value) in metadata {
            request.metadata_mut().insert(*key, value.parse().unwrap());
        }
        if let Some(name) = name {
            request.extensions_mut().insert(CommonName(name.into()));
        }
        let Claim { token, common_name } = Claim::in_request(&request);
        (token, common_name.map(|name| name.to_string()))
    }

    #[test]
    fn a_token_is_read_where_etcd_reads_it() {
        let token = |metadata: &[(&'static str, &'static str)]| claim(metadata, None).0;
        assert_eq!(token(&[]), None);
        assert_eq!(token(&[("token", "a.1"), ("authorization", "b.2")]).as_deref(), Some("a.1"));
        assert_eq!(token(&[("authorization", "Bearer b.2")]).as_deref(), Some("b.2"));
    }

    #[test]
    fn a_gateway_is_not_the_user_of_its_certificate() {
        assert_eq!(claim(&[], Some("bob")).1.as_deref(), Some("bob"));
        assert_eq!(claim(&[("grpcgateway-accept", "*/*")], Some("bob")).1, None);
    }
}
