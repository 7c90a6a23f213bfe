package usernet

import "net/netip"

// metadata has the addresses at which clouds serve a machine its metadata and credentials, with the clouds' names.
// Addresses that are local to a link are refused anyway; they are here because the table is read and tested as a whole.
var metadata = map[netip.Addr]string{
	// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/configuring-instance-metadata-service.html, also of Google
	// Cloud, Azure, Oracle, DigitalOcean, Hetzner, IBM, Akamai (Linode), Vultr, OVHcloud, Huawei, Yandex and OpenStack.
	netip.MustParseAddr("169.254.169.254"): "AWS and most other clouds",
	netip.MustParseAddr("fd00:ec2::254"):   "AWS",
	// https://docs.aws.amazon.com/AmazonECS/latest/developerguide/task-metadata-endpoint.html
	netip.MustParseAddr("169.254.170.2"): "AWS ECS",
	// https://docs.aws.amazon.com/eks/latest/userguide/pod-id-how-it-works.html
	netip.MustParseAddr("169.254.170.23"): "AWS EKS",
	netip.MustParseAddr("fd00:ec2::23"):   "AWS EKS",
	// https://cloud.google.com/compute/docs/metadata/querying-metadata
	netip.MustParseAddr("fd20:ce::254"): "Google Cloud",
	// https://learn.microsoft.com/azure/virtual-network/what-is-ip-address-168-63-129-16
	netip.MustParseAddr("168.63.129.16"): "Azure",
	// https://www.alibabacloud.com/help/en/ecs/user-guide/view-instance-metadata
	netip.MustParseAddr("100.100.100.200"): "Alibaba Cloud",
	// https://docs.oracle.com/iaas/Content/Compute/Tasks/gettingmetadata.htm
	netip.MustParseAddr("fd00:c1::a9fe:a9fe"): "Oracle Cloud",
	netip.MustParseAddr("192.0.0.192"):        "Oracle Cloud Classic",
	// https://www.tencentcloud.com/document/product/213/4934
	netip.MustParseAddr("169.254.0.23"): "Tencent Cloud",
	// https://www.volcengine.com/docs/6396/69814
	netip.MustParseAddr("100.96.0.96"): "Volcano Engine",
	// https://www.scaleway.com/en/docs/instances/how-to/use-cloud-init/
	netip.MustParseAddr("169.254.42.42"): "Scaleway",
	netip.MustParseAddr("fd00:42::42"):   "Scaleway",
	// https://techdocs.akamai.com/cloud-computing/docs/overview-of-the-metadata-service
	netip.MustParseAddr("fd00:a9fe:a9fe::1"): "Akamai",
	// https://docs.openstack.org/nova/latest/user/metadata.html
	netip.MustParseAddr("fe80::a9fe:a9fe"): "OpenStack",
}
