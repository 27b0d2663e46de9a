//! Our `.proto` files declare exactly the API that etcd 3.7.3 declares.
//!
//! `golden/etcd-3.7.3.txt` was listed from the descriptors in etcd's Go modules (api/v3, server/v3 and the grpc-go
//! 1.83.2 that it serves health with). It has one line for every service, method, message, field (number, cardinality,
//! type, oneof, packed) and enum value. The lines are sorted.

use protox::prost_reflect::{Cardinality, EnumDescriptor, Kind, MessageDescriptor, ServiceDescriptor};

mod common;

/// The packages that etcd owns the definition of; ours are free to change.
const ETCD_PACKAGES: [&str; 6] = ["etcdserverpb", "mvccpb", "authpb", "v3lockpb", "v3electionpb", "grpc.health.v1"];

fn list_service(service: &ServiceDescriptor, lines: &mut Vec<String>) {
    let stream = |yes| if yes { "stream " } else { "" };
    lines.push(format!("service {}", service.full_name()));
    lines.extend(service.methods().map(|m| {
        format!(
            "method /{}/{} {}{} -> {}{}",
            service.full_name(),
            m.name(),
            stream(m.is_client_streaming()),
            m.input().full_name(),
            stream(m.is_server_streaming()),
            m.output().full_name()
        )
    }));
}

fn list_message(message: &MessageDescriptor, lines: &mut Vec<String>) {
    lines.push(format!("message {}", message.full_name()));
    for field in message.fields() {
        let cardinality = match field.cardinality() {
            Cardinality::Optional => "optional",
            Cardinality::Required => "required",
            Cardinality::Repeated => "repeated",
        };
        let kind = match field.kind() {
            Kind::Message(m) => m.full_name().to_owned(),
            Kind::Enum(e) => e.full_name().to_owned(),
            scalar => format!("{scalar:?}").to_lowercase(),
        };
        let oneof = field.containing_oneof().map(|o| format!(" oneof {}", o.name())).unwrap_or_default();
        let packed = if field.is_packed() { " packed" } else { "" };
        let number = field.number();
        lines.push(format!("field {} {number} {cardinality} {kind}{oneof}{packed}", field.full_name()));
    }
    message.child_messages().for_each(|m| list_message(&m, lines));
    message.child_enums().for_each(|e| list_enum(&e, lines));
}

fn list_enum(e: &EnumDescriptor, lines: &mut Vec<String>) {
    lines.push(format!("enum {}", e.full_name()));
    lines.extend(e.values().map(|v| format!("value {}.{} {}", e.full_name(), v.name(), v.number())));
}

#[test]
fn services_and_messages_are_those_of_etcd() {
    let pool = common::compile().descriptor_pool();
    let mut ours = Vec::new();
    for file in pool.files().filter(|file| ETCD_PACKAGES.contains(&file.package_name())) {
        file.services().for_each(|s| list_service(&s, &mut ours));
        file.messages().for_each(|m| list_message(&m, &mut ours));
        file.enums().for_each(|e| list_enum(&e, &mut ours));
    }

    let golden: Vec<&str> = include_str!("golden/etcd-3.7.3.txt").lines().collect();
    let missing: Vec<_> = golden.iter().filter(|line| !ours.iter().any(|o| o == *line)).collect();
    let extra: Vec<_> = ours.iter().filter(|line| !golden.contains(&line.as_str())).collect();
    assert!(missing.is_empty() && extra.is_empty(), "only etcd has: {missing:#?}\nonly eddy has: {extra:#?}");
    assert_eq!(ours.len(), golden.len());
}
