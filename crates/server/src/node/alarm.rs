//! Alarms by the names that etcd gives them.

use eddy_crdt::{Alarm, AlarmKind};

/// etcd's name of an alarm.
pub fn alarm_name(kind: AlarmKind) -> &'static str {
    match kind {
        AlarmKind::NoSpace => "NOSPACE",
        AlarmKind::Corrupt => "CORRUPT",
        AlarmKind::Unknown(_) => "UNKNOWN",
    }
}

/// An alarm as etcd's Status words it. Member 0 stands for every member.
pub fn alarm_text(alarm: &Alarm) -> String {
    let kind = match alarm.kind {
        AlarmKind::Unknown(number) => number.to_string(),
        kind => alarm_name(kind).to_owned(),
    };
    match alarm.member.get() {
        0 => format!("alarm:{kind}"),
        member => format!("memberID:{member} alarm:{kind}"),
    }
}

#[cfg(test)]
mod tests {
    use eddy_crdt::ReplicaId;

    use super::*;

    #[test]
    fn alarms_are_worded_as_in_etcd() {
        let alarm = |member, kind| alarm_text(&Alarm { member: ReplicaId::new(member), kind });
        assert_eq!(alarm(10276657743932975437, AlarmKind::NoSpace), "memberID:10276657743932975437 alarm:NOSPACE");
        assert_eq!(alarm(0, AlarmKind::Corrupt), "alarm:CORRUPT");
        assert_eq!(alarm(7, AlarmKind::Unknown(3)), "memberID:7 alarm:3");
    }
}
