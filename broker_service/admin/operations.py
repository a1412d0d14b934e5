"""Operations: carries out operators' operations on a broker, with mqadmin's names.  Only a master makes changes."""

from broker_service.admin.brokers import BrokerOperations
from broker_service.admin.groups import GroupOperations
from broker_service.admin.messages import MessageOperations
from broker_service.admin.topics import TopicOperations
from broker_service.admin.users import UserOperations


class Operations(TopicOperations, GroupOperations, MessageOperations, BrokerOperations, UserOperations):
    """Combines the operations of all subjects, each of which has a file of its own."""
