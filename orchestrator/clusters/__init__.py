"""clusters/*.yaml -> ClusterProfile: everything that is the site's and not the paper's."""
