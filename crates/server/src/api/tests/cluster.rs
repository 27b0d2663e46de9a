//! Members, and users, of whom there are none.

use eddy_proto::etcdserverpb as pb;
use eddy_proto::etcdserverpb::cluster_client::ClusterClient;
use tonic::Code;

use super::{MEMBER, Served, error, header};

#[tokio::test]
async fn members_are_told_and_changed_as_in_etcd() {
    let served = Served::start().await;
    let mut cluster = ClusterClient::new(served.channel.clone());
    served.node.member_publish("m".to_owned(), vec!["http://a:2379".to_owned()]).await.unwrap();
    let list = cluster.member_list(pb::MemberListRequest { linearizable: true }).await.unwrap().into_inner();
    let member = pb::Member {
        id: MEMBER,
        name: "m".to_owned(),
        peer_ur_ls: vec!["http://a:2380".to_owned(), "http://b:2380".to_owned()],
        client_ur_ls: vec!["http://a:2379".to_owned()],
        is_learner: false,
    };
    assert_eq!((list.header, list.members), (header(0), vec![member.clone()]));
    let unknown = (Code::NotFound, "etcdserver: member not found".to_owned());
    assert_eq!(error(cluster.member_remove(pb::MemberRemoveRequest { id: 1 }).await), unknown);
    let add = |url: &str| pb::MemberAddRequest { peer_ur_ls: vec![url.to_owned()], is_learner: false };
    let bad = (Code::InvalidArgument, "etcdserver: given member URLs are invalid".to_owned());
    assert_eq!(error(cluster.member_add(add("not a url")).await), bad);
    assert_eq!(error(cluster.member_add(add("http://b:2380")).await).0, Code::FailedPrecondition);
    let last = "etcdserver: re-configuration failed due to not enough started members".to_owned();
    let remove = |id| pb::MemberRemoveRequest { id };
    assert_eq!(error(cluster.member_remove(remove(MEMBER)).await), (Code::FailedPrecondition, last));

    let added = cluster.member_add(add("http://c:2380")).await.unwrap().into_inner();
    let new = added.member.unwrap();
    assert_eq!((new.name.as_str(), &new.peer_ur_ls[..]), ("", &["http://c:2380".to_owned()][..]));
    assert_eq!(added.members.len(), 2);
    let not_learner = "etcdserver: can only promote a learner member".to_owned();
    let promoted = cluster.member_promote(pb::MemberPromoteRequest { id: new.id }).await;
    assert_eq!(error(promoted), (Code::FailedPrecondition, not_learner));
    let update = |url: &str| pb::MemberUpdateRequest { id: new.id, peer_ur_ls: vec![url.to_owned()] };
    let taken = "etcdserver: Peer URLs already exists".to_owned();
    assert_eq!(error(cluster.member_update(update("http://a:2380")).await), (Code::FailedPrecondition, taken));
    let updated = cluster.member_update(update("http://d:2380")).await.unwrap().into_inner();
    assert!(updated.members.iter().any(|m| m.id == new.id && m.peer_ur_ls == ["http://d:2380"]), "{updated:?}");
    let left = cluster.member_remove(remove(new.id)).await.unwrap().into_inner().members;
    assert_eq!(left, [member]);
    assert_eq!(error(cluster.member_remove(remove(new.id)).await), unknown);
    // At the same URLs it is another member now; as a learner there is room for one.
    let learner = |url: &str| pb::MemberAddRequest { peer_ur_ls: vec![url.to_owned()], is_learner: true };
    let again = cluster.member_add(learner("http://c:2380")).await.unwrap().into_inner().member.unwrap();
    assert!(again.id != new.id && again.is_learner, "{again:?}");
    let too_many = "etcdserver: too many learner members in cluster".to_owned();
    assert_eq!(error(cluster.member_add(learner("http://e:2380")).await), (Code::FailedPrecondition, too_many));
    let not_ready = "etcdserver: can only promote a learner member which is in sync with leader".to_owned();
    let promoted = cluster.member_promote(pb::MemberPromoteRequest { id: again.id }).await;
    assert_eq!(error(promoted), (Code::FailedPrecondition, not_ready));
}
