"""Serves states from Kafka. Kafka Streams keeps them in this process, in a Java virtual machine (JPype).

The topic of each entity is a table of Kafka Streams. The table's store has the last message of every key, as raw bytes.
If a store is lost, Kafka Streams restores it from the same topic, so the application writes only its offsets to Kafka.
A message is decoded when its row is requested.

Views that leave out the changes of some services have applications of their own. Such an application also writes the
content of its store to a further topic, and Kafka Streams restores the store from that topic.

Only `java`, `tables`, `listeners` and `service_filter` import JPype. `progress` finds out how far the stores are
complete.
"""
